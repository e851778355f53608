"""The series against float64, at every size of x, and what is no number."""

import math

import numpy as np

from minipaged.kernels.exp import exp


def test_the_error_is_what_the_docstring_says():
    for x in np.linspace(-87, 88, 5001, dtype=np.float32):
        exact = math.exp(float(x))
        assert abs(float(exp(x)) - exact) <= (2e-7 + 8e-8 * abs(float(x))) * exact, x


def test_zero_is_one_and_the_ends_are_where_they_should_be():
    assert exp(np.float32(0)) == 1
    assert exp(np.float32(-math.inf)) == exp(np.float32(-1e4)) == 2.0**-126
    assert exp(np.float32(math.inf)) == exp(np.float32(89)) == math.inf
    assert math.isnan(exp(np.float32(math.nan)))
