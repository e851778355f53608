"""What a launcher allocates is poisoned and walled in: stale numbers and stray writes show at once.

    [ wall | NaN NaN NaN ... NaN | wall ]      what torch.empty gives inside `guarded` (integers: -7)
                                               afterwards the walls must be as they were

And what a kernel's result may differ by from its specification, computed in float32: so many roundings of its dtype,
relative to the largest number that went in."""

from functools import partial
from unittest.mock import patch

import torch

from minipaged.kernels import jit

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")  # the interpreter's bfloat16 is broken
NUM_ROUNDINGS = {torch.float32: 64, torch.float16: 4, torch.bfloat16: 4}
WALL, SENTINEL, STALE = 256, 7.0, -7  # stale: an integer that nobody writes
real_empty = torch.empty


def guarded(launcher, *args):
    """launcher(*args), all it allocates poisoned and walled in."""
    rooms = []

    def empty(*size, dtype=torch.float32, device="cpu"):
        shape = real_empty(*size, device="meta").shape
        room = torch.full((WALL + shape.numel() + WALL,), SENTINEL, dtype=dtype, device=device)
        rooms.append(room)
        return room[WALL:-WALL].fill_(float("nan") if dtype.is_floating_point else STALE).view(shape)

    with patch.object(torch, "empty", empty):
        out = launcher(*args)
    for room in rooms:
        assert (room[:WALL] == SENTINEL).all(), "written before what was allocated"
        assert (room[-WALL:] == SENTINEL).all(), "written behind what was allocated"
    return out


def on_threads(num_threads, launcher, *args):
    """launcher(*args), a CPU's, shared by so many threads however little there is to do."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with patch.object(jit, "WORTH_WAKING", 0):
            return launcher(*args)
    finally:
        torch.set_num_threads(before)


def makes(launcher, twin):
    """Who does the same on this machine, with a dtype: Triton's kernel, the CPU's, and that on three threads."""
    twins = (twin, partial(on_threads, 3, twin)) if DEVICE == "cpu" else ()
    return [(launcher, dtype) for dtype in DTYPES] + [(make, torch.float32) for make in twins]


def assert_close(out, expected, largest=1.0):
    """expected in float32; largest: the largest number that went into a result."""
    assert out.shape == expected.shape
    bound = NUM_ROUNDINGS[out.dtype] * torch.finfo(out.dtype).eps / 2 * largest
    error = (out.float() - expected.float()).abs().max().item() if out.numel() else 0.0
    assert error <= bound, f"off by {error}, at most {bound} may be rounding"


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)
