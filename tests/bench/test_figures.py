"""Moments become figures; what failed is in none of them but its own."""

import pytest

from minipaged.bench.figures import Promise, Timing, quantile, summarise


def timing(arrival: float, moments: list[float], num_output: int, **more: object) -> Timing:
    return Timing(arrival, arrival, moments, moments[-1], 10, num_output, **more)  # type: ignore[arg-type]


def test_one_client() -> None:
    one = timing(1.0, [1.5, 2.0, 3.5], 5)
    assert (one.ttft, one.e2e, one.gaps) == (0.5, 2.5, [0.5, 1.5])
    assert one.tpot == 0.5, "two seconds for the four tokens after the first, however they were packed"
    assert timing(0.0, [1.0], 1).tpot is None


def test_many() -> None:
    timings = [timing(0.0, [0.1, 0.2], 2), timing(0.0, [0.3, 0.5], 2), Timing(0.0, error="gone", end=9.0)]
    found = summarise(timings, 2.0, Promise(ttft=0.2))
    assert (found["requests"], found["failed"], found["errors"]) == (3, 1, ["gone"])
    assert (found["requests_per_s"], found["goodput_requests_per_s"], found["output_tokens_per_s"]) == (1.0, 0.5, 2.0)
    assert found["ttft_s"] == pytest.approx({"mean": 0.2, "p50": 0.2, "p99": 0.298})
    assert found["e2e_s"]["p50"] == pytest.approx(0.35)


def test_nobody() -> None:
    found = summarise([], 1.0, Promise())
    assert found["ttft_s"] == {"mean": None, "p50": None, "p99": None}
    assert found["goodput_requests_per_s"] == 0


@pytest.mark.parametrize(("promise", "kept"), [
    (Promise(), True), (Promise(ttft=0.5, tpot=0.5, e2e=2.5), True), (Promise(ttft=0.4), False),
    (Promise(tpot=0.4), False), (Promise(e2e=2.4), False),
])  # fmt: skip
def test_a_promise_is_kept_or_not(promise: Promise, kept: bool) -> None:
    assert promise.is_kept(timing(1.0, [1.5, 2.0, 3.5], 5)) == kept


def test_quantiles_lie_between_neighbours() -> None:
    assert [quantile([0.0, 1.0, 2.0], share) for share in (0, 0.25, 0.5, 1)] == [0, 0.5, 1, 2]
    assert quantile([], 0.5) is None
