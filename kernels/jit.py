"""CPU kernels are compiled once per machine and kept on disk, with the freedoms that let loops use wide registers.

reassoc   a sum may be added up in any order, so eight partial sums fit one register
contract  a * b + c may be one instruction
numpy     a division by zero gives infinity or NaN, as in torch: no loop has to stop and look
Not granted: that numbers are finite. A NaN has to come out as a NaN, in its own row only.

A kernel whose rows may lie anywhere is given the memory they lie in, and their strides, as a pointer would be:

    x [T, H, D], a slice of a fused product    | q q q k v | q q q k v | ...      flat(x) begins at x[0, 0, 0]
    x[t, h]                                    flat(x)[t * x.stride(0) + h * x.stride(1) :][:D], side by side

Where a CPU has registers of 512 bits, LLVM fills half of each, since the first such CPUs lowered their clock for more.
Those since Sapphire Rapids, told by their 16-bit floats, do not: there numba fills them, in all of this process.

Compiled code is cached beside the source, or in the user's cache directory where that is read-only. numba notices a
change in a kernel's own file only, and kernels call one another across files: so what lies beside the source and is
older than any kernel's text is compiled anew. (In a user's cache directory, where nobody edits, it is not.)"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numba import config, njit, set_num_threads
from numba.core.codegen import get_host_cpu_features
from numpy.typing import NDArray
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])
Floats = NDArray[np.float32]
Thread = int | np.int64  # np.int64(thread) in a prange, which counts without a sign: a type to compile for once more

WORTH_WAKING = 1 << 17  # numbers: with fewer, one thread is done before it has woken the others

settings: Any = config  # its attributes are made when it is imported
if settings.CPU_FEATURES is None and "+avx512fp16" in (features := get_host_cpu_features()):
    settings.CPU_FEATURES = f"{features},-prefer-256-bit"


def forget_older(folder: Path) -> None:
    """Numba's indices of compiled code, in folder/__pycache__, that are older than a source in the folder."""
    newest = max(source.stat().st_mtime for source in folder.glob("*.py"))
    for index in folder.glob("__pycache__/*.nbi"):
        with suppress(OSError):  # another process has thrown it away already, or nobody may
            if index.stat().st_mtime < newest:
                index.unlink()


forget_older(Path(__file__).parent)


def compiled(*, parallel: bool = False, as_written: bool = False) -> Callable[[F], F]:
    """Machine code for the types it is first called with; `as_written` without the freedoms, even inside others."""
    freedoms: set[str] | bool = False if as_written else {"reassoc", "contract", "nsz", "arcp"}
    make = njit(cache=True, nogil=True, fastmath=freedoms, error_model="numpy", parallel=parallel)
    return cast("Callable[[F], F]", make)


def flat(x: Tensor) -> Floats:
    """The memory from x's first number on, of a float32 tensor that is contiguous in its last axis."""
    assert x.dtype == torch.float32, f"{x.dtype} is not float32"
    if x.is_contiguous():
        numbers: Floats = x.numpy().reshape(-1)
        return numbers
    assert x.stride(-1) == 1, f"strides {x.stride()} of {x.shape}"
    size = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    return flat(x.as_strided((size,), (1,)))


def agree_on_threads() -> None:
    """As many for numba as torch has. numba's first loop tells OpenMP, which is torch's too, how many there are: all
    cores, whatever OMP_NUM_THREADS says, and then threads without work are waited for, long where cores are busy."""
    wanted = torch.get_num_threads()
    set_num_threads(min(wanted, settings.NUMBA_NUM_THREADS))  # of the thread that calls; it starts them
    torch.set_num_threads(wanted)


@compiled()
def share_of(num_rows: int, thread: Thread, threads: int) -> tuple[int, int]:
    """The rows that fall to one of so many threads: the first, and the first that does not."""
    return int(num_rows * thread // threads), int(num_rows * (thread + 1) // threads)


def num_threads(num_numbers: int) -> int:
    """Threads that share work on so many numbers."""
    return torch.get_num_threads() if num_numbers >= WORTH_WAKING else 1
