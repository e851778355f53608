"""On a GPU time is stamped, not waited for; fake events stand for the GPU's."""

import time

import pytest
import torch

from minipaged.clock import MOST_PENDING, DeviceClock, HostClock, choose_clock


class Event:
    """Stamped at once by a clock that goes a millisecond further each time; over when somebody says so."""

    clock, waits, over = 0, 0, False

    def record(self):
        Event.clock += 1
        self.at = Event.clock

    def query(self):
        return Event.over

    def synchronize(self):
        Event.waits += 1

    def elapsed_time(self, end):
        return float(end.at - self.at)


@pytest.fixture(autouse=True)
def quiet():
    Event.clock, Event.waits, Event.over = 0, 0, False


def test_a_cpu_is_timed_where_it_is_called():
    watch = choose_clock(torch.device("cpu"))
    assert isinstance(watch, HostClock)
    start = time.perf_counter()
    with watch:
        time.sleep(0.01)
    assert 0.01 <= watch.seconds <= time.perf_counter() - start


def test_nobody_waits_before_the_seconds_are_asked_for():
    watch = DeviceClock(Event)
    for _ in range(3):
        with watch:
            Event.clock += 4  # of work
    assert Event.waits == 0
    assert watch.seconds == pytest.approx(3 * 5e-3)
    assert (Event.waits, watch.seconds) == (3, pytest.approx(15e-3))


@pytest.mark.parametrize("over", [False, True])
def test_pairs_that_are_over_do_not_pile_up(over):
    watch, Event.over = DeviceClock(Event), over
    for _ in range(2 * MOST_PENDING):
        with watch:
            pass
    assert len(watch.pending) == (MOST_PENDING if over else 2 * MOST_PENDING)
    assert watch.seconds == pytest.approx(2e-3 * MOST_PENDING)


def test_an_error_is_passed_on_and_timed():
    for watch in (HostClock(), DeviceClock(Event)):
        with pytest.raises(ZeroDivisionError), watch:
            1 / 0  # noqa: B018
        assert watch.seconds > 0
