"""Moments become figures: each client's own, then what half of them and 99 of a hundred had at most.

    sent |---- ttft ----| token |- itl -| token |- itl -| token     tpot = (last - first) / (tokens - 1)
         |--------------------------- e2e -------------------|

Goodput is how many requests a second kept every promise that was made of them (SLO): one that came too late counts for
nothing. Invariant: a request that failed is counted as failed, and in no time. (From level 08.)"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

Figures = dict[str, Any]


@dataclass
class Timing:
    """One client. Moments in seconds from the start of the run; tokens as the server counted them."""

    arrival: float
    sent: float = 0.0
    moments: list[float] = field(default_factory=list)  # when text came
    end: float = 0.0
    num_prompt: int = 0
    num_output: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        return self.moments[0] - self.arrival

    @property
    def e2e(self) -> float:
        return self.end - self.arrival

    @property
    def tpot(self) -> float | None:
        return (self.moments[-1] - self.moments[0]) / (self.num_output - 1) if self.num_output > 1 else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.moments)]


@dataclass(frozen=True)
class Promise:
    """What a client may expect, in seconds; None: nothing."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def is_kept(self, timing: Timing) -> bool:
        pairs = ((timing.ttft, self.ttft), (timing.tpot or 0.0, self.tpot), (timing.e2e, self.e2e))
        return all(limit is None or value <= limit for value, limit in pairs)


def summarise(timings: Sequence[Timing], wall_s: float, promise: Promise) -> Figures:
    done = [timing for timing in timings if timing.error is None]
    num_output, kept = sum(timing.num_output for timing in done), [one for one in done if promise.is_kept(one)]
    return {
        "requests": len(timings),
        "failed": len(timings) - len(done),
        "errors": sorted({timing.error for timing in timings if timing.error}),
        "wall_s": wall_s,
        "prompt_tokens": sum(timing.num_prompt for timing in done),
        "output_tokens": num_output,
        "requests_per_s": len(done) / wall_s,
        "output_tokens_per_s": num_output / wall_s,
        "goodput_requests_per_s": len(kept) / wall_s,
        "ttft_s": spread([timing.ttft for timing in done]),
        "tpot_s": spread([timing.tpot for timing in done if timing.tpot is not None]),
        "itl_s": spread([gap for timing in done for gap in timing.gaps]),
        "e2e_s": spread([timing.e2e for timing in done]),
    }


def spread(values: list[float]) -> dict[str, float | None]:
    """mean, p50 and p99; None of nothing."""
    ordered = sorted(values)
    return {
        "mean": fmean(ordered) if ordered else None,
        "p50": quantile(ordered, 0.5),
        "p99": quantile(ordered, 0.99),
    }


def quantile(ordered: list[float], share: float) -> float | None:
    """Between two neighbours, in proportion."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
