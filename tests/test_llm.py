"""Outputs come in the order of the prompts; whatever is refused is refused before anything runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levels import load
from minipaged import LLM, SamplingParams
from minipaged.config import EngineConfig
from minipaged.driver import Run

from .fake_model import FakeModel
from .tiny import greedy_tokens, tiny_model
from .tiny_tokenizer import tiny_tokenizer

LEVELS = (1, 2, 3)
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def make(level: int, **options: Any) -> LLM:
    def engine(config: EngineConfig) -> Any:
        return load(level).Engine(config, FakeModel(vocab_size=96))

    options = {"block_size": 4, "num_blocks": 16, "max_model_len": 32, **options}
    return LLM("fake", engine=engine, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(str(folder), engine=load(3).Engine, num_blocks=64, max_model_len=64)


def idle(llm: LLM) -> bool:
    return not llm.engine.has_unfinished_requests() and not llm.engine.desk.live


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_on_every_level(level: int, folder: Path) -> None:
    llm = LLM(folder, engine=load(level).Engine, num_blocks=64, max_model_len=64)
    prompts = [[7, 8, 9], [5, 6], [40] * 11]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == greedy_tokens(folder, prompts, 4)


def test_every_kind_of_prompt_is_the_same_prompt(llm: LLM) -> None:
    kinds: list[Any] = ["w7 w9", [7, 9], {"prompt": "w7 w9"}, {"prompt_token_ids": [7, 9]}]
    single = [llm.generate(prompt, GREEDY) for prompt in kinds]
    assert [len(outputs) for outputs in single] == [1] * 4
    for output in [*(outputs[0] for outputs in single), *llm.generate(kinds, GREEDY)]:
        assert output.prompt_token_ids == [7, 9]
        assert output.outputs[0].token_ids == single[0][0].outputs[0].token_ids
        assert output.finished


def test_an_output_has_its_text_and_its_end(llm: LLM) -> None:
    [output] = llm.generate("w7 w9", GREEDY)
    completion = output.outputs[0]
    assert completion.text == llm.tokenizer.decode(completion.token_ids, skip_special_tokens=True) != ""
    assert (completion.finish_reason, completion.stop_reason) == ("length", None)


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert llm.generate([], []) == []


def test_one_of_many_params_for_each(llm: LLM) -> None:
    each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 1, 2)]
    outputs = llm.generate([[7], [8], [9]], each)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 1, 2]
    assert [output.prompt_token_ids for output in outputs] == [[7], [8], [9]]


@pytest.mark.parametrize("level", LEVELS)
def test_several_answers_come_in_one_output(level: int) -> None:
    lively = SamplingParams(n=3, temperature=4.0, max_tokens=6, ignore_eos=True)
    several, single = make(level).generate([[7, 8], [9]], [lively, GREEDY])
    assert [said.index for said in several.outputs] == [0, 1, 2]
    assert [len(said.token_ids) for said in several.outputs] == [6, 6, 6]
    assert [len(said.text) for said in several.outputs] == [6, 6, 6]
    assert len({tuple(said.token_ids) for said in several.outputs}) == 3
    assert len(single.outputs) == 1


def test_without_params_sixteen_tokens_and_a_chat_as_long_as_it_may(folder: Path) -> None:
    llm = LLM(folder, engine=load(3).Engine, num_blocks=8, max_model_len=40)
    assert len(llm.generate([7])[0].outputs[0].token_ids) == 16
    [output] = llm.chat([{"role": "user", "content": "w7"}])
    assert output.prompt_token_ids == [1, 3, 7, 2, 1, 4]
    assert len(output.outputs[0].token_ids) == 40 - 6


def test_conversations_one_or_many(llm: LLM) -> None:
    hi = [{"role": "user", "content": "w7"}]
    [one] = llm.chat(hi, GREEDY)
    two = llm.chat([hi, hi], GREEDY)
    assert [output.outputs[0].token_ids for output in two] == [one.outputs[0].token_ids] * 2
    [parts] = llm.chat([{"role": "user", "content": [{"type": "text", "text": "w7"}]}], GREEDY)
    assert parts.prompt_token_ids == one.prompt_token_ids


@pytest.mark.parametrize("level", LEVELS)
def test_two_calls_in_a_row_are_alike(level: int) -> None:
    llm = make(level)
    first, second = (llm.generate([[7, 8], [9]], GREEDY) for _ in range(2))
    assert [output.outputs for output in first] == [output.outputs for output in second]
    assert {output.request_id for output in first}.isdisjoint({output.request_id for output in second})
    assert idle(llm)


def test_priority_is_who_goes_first() -> None:
    llm = make(3, scheduling_policy="priority", max_num_seqs=1)
    llm.generate([[7], [8]], GREEDY, priority=[1, 0])
    admitted = [name for step in llm.engine.trace.steps for name in step.admitted]
    assert admitted == ["1", "0"]


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda llm: llm.generate([[7], []], GREEDY), ValueError, "the prompt is empty"),
    (lambda llm: llm.generate([[7], [96]], GREEDY), ValueError, r"prompt_token_ids\[0\].*96"),
    (lambda llm: llm.generate([[7], [-1]], GREEDY), ValueError, r"prompt_token_ids\[0\]"),
    (lambda llm: llm.generate([[7], [True]], GREEDY), TypeError, r"prompt_token_ids\[0\]"),
    (lambda llm: llm.generate([[7], [1.0]], GREEDY), TypeError, r"prompt_token_ids\[0\]"),
    (lambda llm: llm.generate([[7], 7.5], GREEDY), TypeError, "list of token ids"),
    (lambda llm: llm.generate([7, "w7"], GREEDY), TypeError, r"prompt_token_ids\[1\]"),
    (lambda llm: llm.generate(7, GREEDY), TypeError, "prompts must be"),
    (lambda llm: llm.generate(None, GREEDY), TypeError, "prompts must be"),
    (lambda llm: llm.generate([[7], "text"], GREEDY), ValueError, "no tokenizer"),
    (lambda llm: llm.generate([[7], {"prompt": [7]}], GREEDY), (TypeError, ValueError), "prompt"),
    (lambda llm: llm.generate([[7], {"prompt_token_ids": "7"}], GREEDY), TypeError, "prompt_token_ids must be"),
    (lambda llm: llm.generate([[7], {"tokens": [7]}], GREEDY), ValueError, "one key"),
    (lambda llm: llm.generate([[7], {}], GREEDY), ValueError, "one key"),
    (lambda llm: llm.generate([[7], [8]], [GREEDY]), ValueError, "2 prompts but 1 sampling_params"),
    (lambda llm: llm.generate([[7]], []), ValueError, "1 prompts but 0 sampling_params"),
    (lambda llm: llm.generate([[7]], [GREEDY, GREEDY]), ValueError, "1 prompts but 2 sampling_params"),
    (lambda llm: llm.generate([[7], [8]], [GREEDY, None]), TypeError, "must be SamplingParams"),
    (lambda llm: llm.generate([[7]], {"max_tokens": 3}), TypeError, "must be SamplingParams"),
    (lambda llm: llm.generate([[7], [8]], GREEDY, priority=[0]), ValueError, "2 prompts but 1 priority"),
    (lambda llm: llm.generate([[7], [8]], GREEDY, priority=[0, "x"]), TypeError, "priority must be"),
    (lambda llm: llm.generate([[7], [8]], GREEDY, priority=[0, 2**63]), ValueError, "priority must be"),
    (lambda llm: llm.generate([[7], [7] * 32], GREEDY), ValueError, "32 tokens; max_model_len 32"),
    (lambda llm: llm.generate([[7], [7] * 29], GREEDY), ValueError, "4 .* 29 .* 32"),
    (lambda llm: llm.chat({"role": "user", "content": "hi"}), TypeError, "messages must be a list"),
    (lambda llm: llm.chat(None), TypeError, "messages must be a list"),
    (lambda llm: llm.chat([]), ValueError, "at least one message"),
    (lambda llm: llm.chat([{"role": "user", "content": "hi"}]), ValueError, "no chat template"),
]


@pytest.mark.parametrize(("call", "error", "complaint"), REFUSED)
def test_what_is_refused_is_refused_before_anything_runs(
    call: Callable[[LLM], Any], error: type[Exception], complaint: str
) -> None:
    llm = make(3)
    with pytest.raises(error, match=complaint):
        call(llm)
    assert idle(llm)
    assert llm.engine.trace.steps == []


def test_a_prompt_larger_than_the_pool_is_refused_with_the_numbers() -> None:
    llm = make(3, num_blocks=4)
    with pytest.raises(ValueError, match="17 tokens needs 5 blocks of 4; the whole pool has 4"):
        llm.generate([[7], [7] * 17], SamplingParams(max_tokens=1))
    assert idle(llm)


@pytest.mark.parametrize(
    ("level", "option", "number"),
    [
        (1, {"max_num_batched_tokens": 64}, 3),
        (2, {"scheduling_policy": "priority"}, 3),
        (3, {"enable_prefix_caching": False}, 4),
        (3, {"num_speculative_tokens": 3}, 5),
        (3, {"tensor_parallel_size": 2}, 6),
        (3, {"data_parallel_size": 2}, 7),
    ],
)
def test_an_option_of_a_later_level_is_refused_by_its_number(level: int, option: dict[str, Any], number: int) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} comes with level {number:02}"):
        make(level, **option)


def test_what_is_no_option_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no field 'num_block'"):
        make(3, num_block=3)
    with pytest.raises(ValueError, match="num_blocks must be"):
        make(3, num_blocks=0)


def test_a_folder_without_a_tokenizer_answers_token_ids_without_text(tmp_path: Path) -> None:
    llm = LLM(tiny_model(tmp_path), engine=load(3).Engine, num_blocks=8, max_model_len=32)
    [output] = llm.generate([7, 8], GREEDY)
    assert len(output.outputs[0].token_ids) == 4
    assert output.outputs[0].text == ""
    with pytest.raises(ValueError, match="no tokenizer"):
        llm.generate("w7", GREEDY)


def test_a_request_that_fails_does_not_raise() -> None:
    llm = make(3)
    llm.engine.model.unlucky = frozenset({15})  # type: ignore[attr-defined]
    outputs = llm.generate([[7], [15], [8]], GREEDY)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length"]
    assert "NaN" in str(outputs[1].error)


@pytest.mark.parametrize("level", LEVELS)
def test_an_interrupt_is_raised_and_nothing_is_left_running(level: int) -> None:
    def on_step(run: Run, outputs: Any) -> None:
        if run.num_steps == 2:
            raise KeyboardInterrupt

    llm = make(level, max_num_seqs=2)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[7], [8], [9]], GREEDY, on_step=on_step)
    assert idle(llm)
    llm.engine.check_integrity()  # type: ignore[attr-defined]
    assert len(llm.generate([[7]], GREEDY)[0].outputs[0].token_ids) == 4


def test_an_aborted_request_keeps_its_place() -> None:
    outputs = make(3).generate([[7], [8], [9]], GREEDY, on_step=lambda run, outputs: run.engine.abort("1"))
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "abort", "length"]
    assert [output.prompt_token_ids for output in outputs] == [[7], [8], [9]]
