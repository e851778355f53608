"""Clients come at the rate that was wished for, however unevenly, and at the same moments every time."""

import math
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from minipaged.bench.arrivals import arrivals


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_mean_gap_is_that_of_the_rate_and_its_spread_that_of_the_burstiness(burstiness: float) -> None:
    moments = arrivals(20_001, 4.0, burstiness, seed=1)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert pstdev(gaps) == pytest.approx(0.25 / math.sqrt(burstiness), rel=0.05)
    assert moments[0] == 0
    assert moments == sorted(moments)


def test_the_seed_decides() -> None:
    assert arrivals(5, 1.0, 1.0, 7) == arrivals(5, 1.0, 1.0, 7) != arrivals(5, 1.0, 1.0, 8)


def test_without_a_rate_all_come_at_once() -> None:
    assert arrivals(3, math.inf, 1.0, 0) == [0.0, 0.0, 0.0]
