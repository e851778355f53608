"""Clients come when they come, not when the server is ready: an open loop, which a queue can grow in.

    rate inf      all at once
    Poisson       gaps are exponential, mean 1 / rate: nobody knows of the others        burstiness 1
    gamma         the same mean, more in bursts (burstiness < 1) or more evenly (> 1)

Invariant: the seed decides every moment, whatever the server does. (From level 08.)"""

import math
from itertools import accumulate
from random import Random


def arrivals(number: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start, not decreasing; the first is 0."""
    if math.isinf(rate):
        return [0.0] * number
    random = Random(seed)
    gaps = (random.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(number - 1))
    return list(accumulate(gaps, initial=0.0))
