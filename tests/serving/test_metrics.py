"""What is counted is what happened, once; two servers in one process do not meet."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from minipaged.serving.metrics import COUNTERS, Metrics, Stopwatch

from .test_answers import output, said

COUNTS = {attribute: i for i, (attribute, _) in enumerate(COUNTERS.values(), 1)}


def stats() -> Any:
    return SimpleNamespace(num_running=3, num_waiting=4, num_free_blocks=12, num_blocks=16, **COUNTS)


def values(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0].removeprefix("minipaged:"): float(line.rpartition(" ")[2]) for line in lines}


def test_the_engines_counts_are_asked_for_when_somebody_asks() -> None:
    found = values(Metrics(stats, "m"))
    assert found['num_requests_running{model_name="m"}'] == 3
    assert found['num_requests_waiting{model_name="m"}'] == 4
    assert found['kv_cache_usage_perc{model_name="m"}'] == 0.25
    for name, (attribute, _) in COUNTERS.items():
        assert found[f'{name}_total{{model_name="m"}}'] == COUNTS[attribute]


def test_a_request_of_two_choices_is_timed_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choice 0: tokens at 1 s, 2 s and two at 4 s; choice 1: one token, at 2 s, and its end with it."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    metrics = Metrics(stats, "m")
    watch = Stopwatch(metrics, 2)
    for moment, first, second in ((1.0, 1, 0), (2.0, 2, 1), (4.0, 4, 1)):
        clock[0] = moment
        done = "length" if moment == 4 else None
        watch.see(0, output(said(0, "", first, done), said(1, "", second, "stop" if second else None)))
    found = values(metrics)

    def of(name: str, what: str) -> float:
        return found[f'{name}_seconds_{what}{{model_name="m"}}']

    assert (of("time_to_first_token", "count"), of("time_to_first_token", "sum")) == (2, 3.0)
    assert (of("inter_token_latency", "count"), of("inter_token_latency", "sum")) == (2, 3.0)
    assert (of("request_time_per_output_token", "count"), of("request_time_per_output_token", "sum")) == (1, 1.0)
    assert (of("e2e_request_latency", "count"), of("e2e_request_latency", "sum")) == (1, 4.0)
    assert found['request_success_total{finished_reason="length",model_name="m"}'] == 1
    assert found['request_success_total{finished_reason="stop",model_name="m"}'] == 1
    assert metrics.last_ttft_s == 2.0


def test_two_servers_in_one_process_do_not_meet() -> None:
    first, second = Metrics(stats, "a"), Metrics(stats, "b")
    Stopwatch(first, 1).see(0, output(said(0, "", 1, "stop")))
    assert values(second).get('time_to_first_token_seconds_count{model_name="b"}') == 0
