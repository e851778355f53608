"""Ranks that are processes say what one process says, whatever the split, the memory, the budget and the guesses.

    TP 2    PP 3, uneven    TP 2 x PP 2        each started once; every case is an engine over the same ranks

An engine with less memory than the ranks have, a smaller budget or a drafter is another driver: nothing of that is
known to a rank. The judge is the same model in this process, whose answers are transformers' (test_identity.py)."""

import os

import pytest

from minipaged import engine as engine_module
from minipaged.config import EngineConfig
from minipaged.engine import Engine
from minipaged.loading import load_model
from minipaged.parallel.backends import make_executor
from minipaged.parallel.distributed import Elsewhere
from minipaged.parallel.executor import Executor
from minipaged.sampling_params import SamplingParams

from ..test_identity import PROMPTS, num_certain
from ..tiny import reference_logits, tiny_model
from ..tiny_tokenizer import tiny_tokenizer
from .processes import listening_ports

NUM_TOKENS = 6
MEMORY = {"num_blocks": 128, "block_size": 4, "max_model_len": 64}
LAYOUTS = [(2, 1), (1, 3), (2, 2)]  # tensor, pipeline


class Borrowed(Executor):
    """The ranks of another executor, for an engine with a config of its own."""

    def __init__(self, lender, **fields):
        self.lender, self.config = lender, EngineConfig(**{**vars(lender.config), **fields})
        self.vocabulary, self.max_concurrent_batches = lender.vocabulary, lender.max_concurrent_batches
        self.target = Elsewhere(lender.target.reading, lender.target.model_config)

    @property
    def forward_s(self):
        return self.lender.forward_s

    def execute(self, batch, guesses):
        return self.lender.execute(batch, guesses)

    def rebalance(self):
        return self.lender.rebalance()

    def shutdown(self):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_tokenizer(tiny_model(tmp_path_factory.mktemp("split"), "qwen3", num_hidden_layers=5, eos_token_id=2))


@pytest.fixture(scope="module")
def alone(folder):
    return load_model(EngineConfig(model=str(folder)))


@pytest.fixture(scope="module", params=LAYOUTS, ids=["TP 2", "PP 3", "TP 2 x PP 2"])
def ranks(request, folder):
    tensor, pipeline = request.param
    split = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    ports = listening_ports(os.getpid())
    executor = make_executor(EngineConfig(model=str(folder), **MEMORY, **split))
    yield executor
    processes = executor.crew.launcher.processes
    executor.shutdown()
    assert [process.returncode for process in processes] == [0] * (tensor * pipeline), "all left when they were told to"
    assert listening_ports(os.getpid()) == ports


@pytest.fixture
def split(ranks, monkeypatch):
    """split(**fields): an engine over the ranks."""

    def make(**fields):
        monkeypatch.setattr(engine_module, "make_executor", lambda config, model: Borrowed(ranks, **fields))
        return Engine(EngineConfig())

    return make


def serve(engine, prompts, *params):
    """Everybody at once: each request's last output, and how many batches were in flight at most."""
    ids = [engine.add_request(prompt, params[i % len(params)]) for i, prompt in enumerate(prompts)]
    last, most = {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            last[output.request_id] = output
        engine.check_integrity()
        most = max(most, len(engine.in_flight))
    assert most == engine.executor.max_concurrent_batches - 1, "one has landed, the others are under way"
    return [last[i] for i in ids]


def greedy(**fields):
    return SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, **fields)


def tokens(outputs):
    return [[choice.token_ids for choice in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def certain(folder, alone):
    """What one process says to each prompt, up to the first token that rounding could change."""
    said = tokens(serve(Engine(EngineConfig(**MEMORY), alone), PROMPTS, greedy()))
    cut = [
        answer[: num_certain(reference_logits(folder, prompt + answer), len(prompt))]
        for prompt, [answer] in zip(PROMPTS, said, strict=True)
    ]
    assert sum(map(len, cut)) > 0.8 * NUM_TOKENS * len(PROMPTS)
    return cut


WAYS = {
    "again": {},
    "chunked": {"max_num_batched_tokens": 9, "long_prefill_token_threshold": 5, "enable_prefix_caching": False},
    "preempted": {"num_blocks": 11},
    "chunked, preempted and guessing": {
        "num_blocks": 11,
        "max_num_batched_tokens": 12,
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 1,
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_split_models_say_what_one_process_says(split, certain, way):
    engine = split(**WAYS[way])
    for _ in range(2 if way == "again" else 1):
        for [answer], due in zip(tokens(serve(engine, PROMPTS, greedy())), certain, strict=True):
            assert (answer[: len(due)], len(answer)) == (due, NUM_TOKENS)
    steps = engine.trace.steps
    assert way != "again" or any(any(step.cached_tokens.values()) for step in steps)
    assert any(step.preempted for step in steps) == ("preempted" in way)
    assert any(step.draft_tokens for step in steps) == ("guessing" in way)


def test_a_draft_model_beside_the_driver_guesses_what_the_ranks_say(split, certain, folder):
    drafted = {"num_speculative_tokens": 3, "speculative_method": "draft_model", "draft_model": str(folder)}
    engine = split(**drafted)
    for [answer], due in zip(tokens(serve(engine, PROMPTS, greedy())), certain, strict=True):
        assert answer[: len(due)] == due
    drafts, right = (
        sum(sum(getattr(step, f"{kind}_tokens").values()) for step in engine.trace.steps)
        for kind in ("draft", "accepted")
    )
    assert drafts > 0
    assert right > 0.9 * drafts, "it is the same model"


def test_a_token_is_drawn_once_and_depends_on_no_rank(split, alone):
    """Ranks have random numbers of their own; what is said depends on seed and position alone."""
    params = [
        SamplingParams(temperature=1.0, seed=7, max_tokens=NUM_TOKENS, n=2),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=20, seed=8, max_tokens=NUM_TOKENS, frequency_penalty=0.5),
        SamplingParams(temperature=1.2, min_p=0.05, seed=9, max_tokens=NUM_TOKENS, logit_bias={5: 4.0}, min_tokens=4),
    ]
    expected = tokens(serve(Engine(EngineConfig(**MEMORY), alone), PROMPTS, *params))
    assert tokens(serve(split(), PROMPTS, *params)) == expected


def test_what_a_draft_model_draws_and_its_distribution_travel_along(split, folder):
    """With itself as a draft model all that is drawn is right: p and q are equal but for rounding."""
    drafted = {"num_speculative_tokens": 3, "speculative_method": "draft_model", "draft_model": str(folder)}
    engine = split(**drafted)
    serve(engine, PROMPTS, SamplingParams(temperature=1.0, seed=3, max_tokens=NUM_TOKENS, ignore_eos=True))
    drafts, right = (
        sum(sum(getattr(step, f"{kind}_tokens").values()) for step in engine.trace.steps)
        for kind in ("draft", "accepted")
    )
    assert right > 0.9 * drafts > 0


def test_scores_are_those_of_one_process(split, alone):
    params = greedy(logprobs=3, prompt_logprobs=2)
    expected = serve(Engine(EngineConfig(**MEMORY), alone), PROMPTS, params)
    for here, there in zip(expected, serve(split(), PROMPTS, params), strict=True):
        assert numbers(there.outputs[0].logprobs) == close(numbers(here.outputs[0].logprobs))
        assert numbers(there.prompt_logprobs[1:]) == close(numbers(here.prompt_logprobs[1:]))


def numbers(entries):
    return [{token_id: score.logprob for token_id, score in entry.items()} for entry in entries]


def close(entries):
    return [pytest.approx(entry, abs=1e-3) for entry in entries]


def test_grammars_hold(split):
    params = SamplingParams(temperature=0, max_tokens=12, structured_outputs={"choice": ["w5w6", "w7"]})
    said = serve(split(num_speculative_tokens=2, prompt_lookup_min=1), PROMPTS, params)
    assert {tuple(output.outputs[0].token_ids) for output in said} <= {(5, 6, 2), (7, 2)}


def test_whoever_gave_way_reads_prompt_and_answer_again(split, alone):
    """Two that outgrow the pool: both finish, and with what they would have said."""
    prompts = [list(range(2, 32)), list(range(40, 70))]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    expected = tokens(serve(Engine(EngineConfig(**MEMORY), alone), prompts, params))
    engine = split(num_blocks=17)
    assert tokens(serve(engine, prompts, params)) == expected
    assert 1 <= sum(len(step.preempted) for step in engine.trace.steps) <= 4


def test_an_abort_in_flight_disturbs_nobody(split, certain):
    engine = split()
    ids = [engine.add_request(prompt, greedy()) for prompt in PROMPTS]
    engine.step()
    for i in ids[::2]:
        engine.abort(i)
    again = engine.add_request(PROMPTS[0], greedy(), ids[0])
    last = {}
    while engine.has_unfinished_requests():
        last |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        engine.check_integrity()
    assert again == ids[0]
    for i, due in ((ids[0], certain[0]), (ids[1], certain[1]), (ids[3], certain[3])):
        assert last[i][: len(due)] == due


def test_every_rank_holds_its_share_and_no_more(ranks, alone):
    reports, layout = ranks.reports(), ranks.layout
    assert len(reports) == layout.num_ranks
    whole = alone.model.num_weight_bytes
    assert whole <= sum(report.weight_bytes for report in reports) < 1.5 * whole, "norms are everybody's"
    assert max(report.weight_bytes for report in reports) < 0.75 * whole
    kv_bytes = alone.new_kv_cache(MEMORY["num_blocks"], MEMORY["block_size"]).data.nbytes
    assert sum(report.kv_bytes for report in reports) == kv_bytes


def test_the_config_of_an_executor_is_complete(ranks):
    config = ranks.config
    assert config.distributed_executor_backend == "mp"
    assert (config.device, config.dtype, config.num_blocks, config.max_model_len) == ("cpu", "float32", 128, 64)
