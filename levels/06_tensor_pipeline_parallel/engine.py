"""The model moves behind an executor, and its batches may overlap. The engine is final: minipaged/engine.py.

    level 05     schedule, speculate, run, verify, advance, retire     one batch, one device
    level 06     schedule, launch ... land                             a batch is under way while the next is decided

Invariant: with one device every step is level 05's; with several, every token is."""

from minipaged.engine import Engine
from minipaged.scheduler import Scheduler

__all__ = ["Engine", "Scheduler"]
