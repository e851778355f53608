"""The result document has every key at every level, and its numbers add up."""

import json
import math
from dataclasses import fields
from statistics import fmean
from typing import Any

import pytest

from levels import NAMES, load
from minipaged.config import EngineConfig
from minipaged.driver import Request, Run
from minipaged.results import latencies, make_document, spread
from minipaged.sampling_params import SamplingParams

from .fake_model import FakeModel

LEVELS = (1, 2, 3)
KEYS = {"level", "model", "device", "dtype", "attention_backend", "config", "requests", "metrics"}
REQUEST_KEYS = (
    "index prompt_token_ids token_ids text finish_reason stop_reason error cached_tokens num_preemptions ttft_s "
    "latency_s"
)
METRIC_KEYS = (
    "wall_s model_s steps prompt_tokens output_tokens output_tokens_per_s total_tokens_per_s ttft_s itl_s tpot_s e2e_s "
    "preemptions prefix_cache_hit_tokens prefix_cache_hit_rate draft_tokens accepted_tokens acceptance_rate "
    "accepted_per_position tokens_per_forward kv"
)
NOT_YET = ["prefix_cache_hit_tokens", "prefix_cache_hit_rate", "draft_tokens", "accepted_tokens", "acceptance_rate"]
SHAPE = [(5, 9), (3, 2), (9, 12), (4, 1), (7, 6)]  # prompt and output lengths; a pool of 8 blocks makes some give way


def ask(num_tokens: int, m: int, *, n: int = 1, **options: Any) -> Request:
    params = SamplingParams(n=n, temperature=0, max_tokens=m, ignore_eos=True)
    return Request([2 + i % 9 for i in range(num_tokens)], params, **options)


def run(level: int, requests: list[Request] | None = None, *, unlucky: tuple[int, ...] = (), **config: Any) -> Run:
    config = {"block_size": 4, "num_blocks": 8, "max_model_len": 24, "max_num_seqs": 4, **config}
    engine = load(level).Engine(EngineConfig(**config), FakeModel(unlucky=frozenset(unlucky)))
    return Run(engine, [ask(*lengths) for lengths in SHAPE] if requests is None else requests, numbered=True)


def document(level: int, *args: Any, **config: Any) -> dict[str, Any]:
    """As a reader gets it: through JSON, which refuses what is not finite."""
    made = make_document(run(level, *args, **config).go(), NAMES[level - 1])
    text = json.dumps(made, allow_nan=False)
    assert json.loads(text) == made
    read: dict[str, Any] = json.loads(text)
    return read


@pytest.mark.parametrize("level", LEVELS)
def test_every_key_is_there_at_every_level(level: int) -> None:
    made = document(level)
    assert set(made) == KEYS
    assert made["level"] == NAMES[level - 1]
    assert set(made["config"]) == {f.name for f in fields(EngineConfig)}
    assert all(set(request) == set(REQUEST_KEYS.split()) for request in made["requests"])
    assert set(made["metrics"]) == set(METRIC_KEYS.split())
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        assert set(made["metrics"][name]) == {"mean", "p50", "p99"}
    assert set(made["metrics"]["kv"]) == {"reserved_slots_mean", "used_slots_mean", "waste"}


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_level_does_not_have_is_null(level: int) -> None:
    made = document(level)
    absent = {f.name for f in fields(EngineConfig) if f.metadata["level"] > level}
    assert {name for name, value in made["config"].items() if value is None} == absent
    assert [made["metrics"][name] for name in NOT_YET] == [None] * len(NOT_YET)


@pytest.mark.parametrize("level", LEVELS)
def test_token_counts_and_times_add_up(level: int) -> None:
    made = document(level)
    requests, metrics = made["requests"], made["metrics"]
    assert [request["index"] for request in requests] == list(range(len(SHAPE)))
    assert [(len(r["prompt_token_ids"]), len(r["token_ids"])) for r in requests] == SHAPE
    assert metrics["prompt_tokens"] == sum(n for n, _ in SHAPE)
    assert metrics["output_tokens"] == sum(m for _, m in SHAPE)
    assert metrics["wall_s"] >= metrics["model_s"] >= 0
    assert metrics["output_tokens_per_s"] == pytest.approx(metrics["output_tokens"] / metrics["wall_s"])
    total = metrics["prompt_tokens"] + metrics["output_tokens"]
    assert metrics["total_tokens_per_s"] == pytest.approx(total / metrics["wall_s"])
    assert all(0 < r["ttft_s"] <= r["latency_s"] <= metrics["wall_s"] for r in requests)
    assert metrics["ttft_s"]["mean"] == pytest.approx(fmean(r["ttft_s"] for r in requests))
    assert metrics["e2e_s"]["mean"] == pytest.approx(fmean(r["latency_s"] for r in requests))


def test_preemptions_are_counted_in_the_run_and_for_each_request() -> None:
    made = document(3)
    assert made["metrics"]["preemptions"] == sum(r["num_preemptions"] for r in made["requests"]) > 0
    assert document(1, num_blocks=64)["metrics"]["preemptions"] == 0


@pytest.mark.parametrize("level", LEVELS)
def test_kv_waste_is_what_a_recount_of_every_step_says(level: int) -> None:
    counted = []

    def recount(asked: Run, outputs: Any) -> None:
        """During the step, from the trace alone: who held memory, and how much of it they had filled."""
        step = asked.engine.trace.steps[-1]
        held, filled = holders.count(step)
        counted.append((held, filled))
        assert (held, filled) == (step.reserved_slots, step.used_slots)

    asked = run(level, num_blocks=18)
    holders = Recount(level, asked.engine.config)
    made = make_document(asked.go(recount), NAMES[level - 1])["metrics"]["kv"]
    assert made["reserved_slots_mean"] == pytest.approx(fmean(held for held, _ in counted))
    assert made["used_slots_mean"] == pytest.approx(fmean(filled for _, filled in counted))
    assert made["waste"] == pytest.approx(fmean(1 - filled / held for held, filled in counted))


class Recount:
    """Who holds how many slots, replayed from the published trace: admitted, preempted, ran so much, finished."""

    def __init__(self, level: int, config: EngineConfig):
        self.block_size = config.block_size
        self.unit = config.max_model_len if level == 1 else config.block_size
        self.computed: dict[str, int] = {}

    def count(self, step: Any) -> tuple[int, int]:
        for name in step.preempted:
            self.computed.pop(name, None)
        self.computed |= dict.fromkeys(step.admitted, 0)
        for name, num_tokens in step.num_scheduled_tokens.items():
            self.computed[name] += num_tokens
        slots = sum(-(-num_tokens // self.unit) * self.unit for num_tokens in self.computed.values())
        filled = sum(self.computed.values())
        gone = step.finished if self.unit == self.block_size else [] if step.num_running else list(self.computed)
        for name in gone:  # at level 01 rows are given back when the whole batch is done
            del self.computed[name]
        return slots, filled


def test_a_failed_request_keeps_its_place_and_says_why() -> None:
    failing = Request([2, 15], SamplingParams(max_tokens=5))
    made = document(3, [ask(3, 1), failing, ask(3, 1)], unlucky=(15,))
    assert [request["finish_reason"] for request in made["requests"]] == ["length", "error", "length"]
    request = made["requests"][1]
    assert "NaN" in request["error"]
    assert (request["token_ids"], request["text"], request["ttft_s"]) == ([], "", None)


def test_an_interrupted_run_has_a_document_with_what_there_is() -> None:
    def on_step(asked: Run, outputs: Any) -> None:
        if asked.num_steps == 2:
            raise KeyboardInterrupt

    asked = run(3, [ask(3, 2), ask(3, 9), ask(3, 2, arrival_s=1e9)]).go(on_step)
    made = json.loads(json.dumps(make_document(asked, NAMES[2]), allow_nan=False))
    assert [request["finish_reason"] for request in made["requests"]] == ["length", "abort", "abort"]
    assert [len(request["token_ids"]) for request in made["requests"]] == [2, 2, 0]
    assert [request["latency_s"] is None for request in made["requests"]] == [False, True, True]
    assert [request["ttft_s"] is None for request in made["requests"]] == [False, False, True]
    assert made["requests"][1]["text"] == asked.engine.desk.decode(made["requests"][1]["token_ids"])


def test_a_run_of_nobody_has_nulls_and_no_division_by_zero() -> None:
    metrics = document(3, [])["metrics"]
    nothing = {"mean": None, "p50": None, "p99": None}
    assert [metrics[name] for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s")] == [nothing] * 4
    assert metrics["kv"] == {"reserved_slots_mean": None, "used_slots_mean": None, "waste": None}
    assert (metrics["steps"], metrics["prompt_tokens"], metrics["output_tokens"]) == (0, 0, 0)


def test_times_are_what_the_clock_says_from_each_arrival() -> None:
    asked = run(3, [ask(3, 3), ask(3, 1, arrival_s=2.0)])
    clock = [(0, [1.0, 1.5, 3.0], 3.0), (1, [2.5], 2.75)]
    done = run(3, [ask(3, 3), ask(3, 1)]).go()
    for i, times, end in clock:
        asked.records[i].output = done.records[i].output
        asked.records[i].choice_times, asked.records[i].end_s = [times], end
    made = make_document(asked, NAMES[2])
    assert [request["ttft_s"] for request in made["requests"]] == [1.0, 0.5]
    assert [request["latency_s"] for request in made["requests"]] == [3.0, 0.75]
    assert made["metrics"]["itl_s"] == {"mean": 1.0, "p50": 0.5, "p99": 1.5}
    assert made["metrics"]["tpot_s"] == {"mean": 1.0, "p50": 1.0, "p99": 1.0}


def test_gaps_are_within_a_choice_and_the_first_token_is_that_of_any() -> None:
    [done] = run(3, [ask(3, 3, n=2)]).go().records
    done.choice_times, done.end_s = [[2.0, 2.5, 4.0], [1.0, 4.0, 4.5]], 4.5
    metrics = latencies([done])
    assert metrics["ttft_s"]["mean"] == 1.0
    assert metrics["itl_s"]["mean"] == fmean([0.5, 1.5, 3.0, 0.5])
    assert metrics["tpot_s"]["mean"] == fmean([1.0, 1.75])
    assert metrics["e2e_s"]["mean"] == 4.5
    assert done.token_times == [1.0, 2.0, 2.5, 4.0, 4.0, 4.5]


@pytest.mark.parametrize("level", LEVELS)
def test_a_request_for_several_answers_has_them_all_and_its_own_is_the_first(level: int) -> None:
    params = SamplingParams(temperature=4.0, seed=1, max_tokens=6, n=3)
    made = document(level, [Request([2, 3, 4], params), ask(3, 2)], num_blocks=64)
    several, single = made["requests"]
    assert set(single) == set(REQUEST_KEYS.split())
    assert set(several) == {*REQUEST_KEYS.split(), "choices"}
    answer = {"token_ids", "text", "finish_reason", "stop_reason"}
    assert all(set(choice) == {"index", *answer} for choice in several["choices"])
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert {key: several["choices"][0][key] for key in answer} == {key: several[key] for key in answer}
    assert len({tuple(choice["token_ids"]) for choice in several["choices"]}) > 1
    num_said = sum(len(choice["token_ids"]) for choice in several["choices"])
    assert (made["metrics"]["prompt_tokens"], made["metrics"]["output_tokens"]) == (6, num_said + 2)


def test_what_the_choices_of_a_request_find_counts_too() -> None:
    made = document(4, [ask(9, 2, n=3), ask(9, 2)], num_blocks=64)
    assert [request["cached_tokens"] for request in made["requests"]] == [0, 8]
    assert made["metrics"]["prefix_cache_hit_tokens"] == 3 * 8
    assert made["metrics"]["prefix_cache_hit_rate"] == pytest.approx(3 * 8 / (4 * 9))


def test_an_interrupt_aborts_the_choices_that_had_not_ended() -> None:
    def on_step(asked: Run, outputs: Any) -> None:
        if asked.num_steps == 3:
            raise KeyboardInterrupt

    asked = run(3, [ask(3, 9, n=2), ask(3, 2, n=2), ask(3, 2, n=2, arrival_s=1e9)], num_blocks=64, max_num_seqs=3)
    made = json.loads(json.dumps(make_document(asked.go(on_step), NAMES[2]), allow_nan=False))
    ends = [[(choice["finish_reason"], len(choice["token_ids"])) for choice in r["choices"]] for r in made["requests"]]
    assert ends == [[("abort", 3)] * 2, [("length", 2), ("abort", 1)], [("abort", 0)] * 2]
    assert made["metrics"]["output_tokens"] == 9


def test_a_second_run_on_the_same_engine_counts_its_own_steps() -> None:
    first = run(3).go()
    alone = make_document(run(3, [ask(4, 1)]).go(), NAMES[2])["metrics"]
    second = make_document(Run(first.engine, [ask(4, 1)], numbered=True).go(), NAMES[2])["metrics"]
    assert (second["preemptions"], second["kv"], second["steps"]) == (0, alone["kv"], 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], (None, None, None)), ([3.0], (3, 3, 3)), ([4.0, 1.0], (2.5, 1, 4)), (list(range(1, 201)), (100.5, 100, 198))],
)
def test_spread_is_mean_median_and_nearest_rank(values: list[float], expected: tuple[Any, ...]) -> None:
    assert tuple(spread(values).values()) == expected
    assert all(value is None or math.isfinite(value) for value in spread(values).values())


def test_what_was_guessed_and_what_was_right_adds_up() -> None:
    made = document(5, num_speculative_tokens=3, prompt_lookup_min=1)
    metrics = made["metrics"]
    assert metrics["draft_tokens"] > metrics["accepted_tokens"] > 0
    assert metrics["acceptance_rate"] == metrics["accepted_tokens"] / metrics["draft_tokens"]
    assert len(metrics["accepted_per_position"]) == 3
    assert sum(metrics["accepted_per_position"]) == metrics["accepted_tokens"]
    assert sorted(metrics["accepted_per_position"], reverse=True) == metrics["accepted_per_position"]
    assert 1 < metrics["tokens_per_forward"] <= 4


def test_positions_are_counted_as_far_as_anybody_guessed() -> None:
    few = document(5, num_speculative_tokens=3, prompt_lookup_min=1)["metrics"]["accepted_per_position"]
    many = document(5, num_speculative_tokens=10_000, prompt_lookup_min=1)["metrics"]
    assert len(few) == 3 < len(many["accepted_per_position"]) < 64, "no guess is longer than its sequence may grow"
    assert sum(many["accepted_per_position"]) == many["accepted_tokens"]


def test_without_guesses_level_05_gains_one_token_a_forward() -> None:
    metrics = document(5)["metrics"]
    assert [metrics[name] for name in ("draft_tokens", "accepted_tokens", "acceptance_rate")] == [0, 0, 0.0]
    assert (metrics["accepted_per_position"], metrics["tokens_per_forward"]) == ([], 1.0)
