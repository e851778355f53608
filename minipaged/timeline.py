"""What each stage of a pipeline did when, as text: the gaps are its bubble.

    1 in flight   stage 0  |████    ████    ████    |     busy 50 %: one works, one waits for it
                  stage 1  |    ████    ████    ████|

    2 in flight   stage 0  |████████████████████████|     busy 100 %
                  stage 1  |████████████████████████|

Invariant: a cell is full as soon as its stage worked for more than half of it; shares are of time, not of cells.
(From level 06.)"""

from collections.abc import Sequence
from typing import NamedTuple

BUSY, IDLE = "█", " "


class Window(NamedTuple):
    """From when to when, in seconds of the clock that spans are told by."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


Stage = Sequence[tuple[float, float]]  # when each of its batches began and ended, in order


def common_window(stages: Sequence[Stage]) -> Window:
    """From when all stages had something to do until the first of them had done all."""
    return Window(max(stage[0][0] for stage in stages), min(stage[-1][1] for stage in stages))


def middle(window: Window, length_s: float) -> Window:
    """The middle part of a window; all of it if it is shorter."""
    start_s = window.start_s + max(0.0, window.length_s - length_s) / 2
    return Window(start_s, min(window.end_s, start_s + length_s))


def busy_s(stage: Stage, window: Window) -> float:
    """How many of the window's seconds the stage worked."""
    return sum(max(0.0, min(end, window.end_s) - max(start, window.start_s)) for start, end in stage)


def busy_share(stages: Sequence[Stage], window: Window) -> float:
    """Of all stages together; what is missing to 1 is the bubble."""
    return sum(busy_s(stage, window) for stage in stages) / (len(stages) * window.length_s)


def draw(stage: Stage, window: Window, width: int) -> str:
    """`width` cells of equal length."""
    cell_s = window.length_s / width
    starts = (window.start_s + i * cell_s for i in range(width))
    return "".join(BUSY if busy_s(stage, Window(t, t + cell_s)) > cell_s / 2 else IDLE for t in starts)
