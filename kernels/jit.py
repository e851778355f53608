"""CPU kernels are compiled once per machine and kept on disk, with the freedoms that let loops use wide registers.

reassoc   a sum may be added up in any order, so eight partial sums fit one register
contract  a * b + c may be one instruction
Not granted: that numbers are finite. A NaN has to come out as a NaN, in its own row only.

Compiled code is cached beside the source, or in the user's cache directory where that is read-only."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(*, parallel: bool = False) -> Callable[[F], F]:
    """Machine code for the types it is first called with."""
    freedoms = {"reassoc", "contract", "nsz", "arcp"}
    return cast("Callable[[F], F]", njit(cache=True, nogil=True, fastmath=freedoms, parallel=parallel))
