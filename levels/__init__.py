"""The ladder: eight levels, each the engine of the one before with one answer changed.

A level's package begins with its number, which Python cannot import by name: no level can lean on another. They are
loaded by number, here and nowhere else."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from minipaged.cli import uninterrupted

NAMES = sorted(path.name for path in Path(__file__).parent.glob("[0-9][0-9]_*"))


def load(number: int, part: str = "engine") -> ModuleType:
    """load(3) -> the module levels.03_continuous_batching.engine. Raises ValueError for a level that is not there."""
    if not 1 <= number <= len(NAMES):
        raise ValueError(f"level {number} is not among 1 to {len(NAMES)}")
    with uninterrupted():
        return import_module(f"{__name__}.{NAMES[number - 1]}.{part}")
