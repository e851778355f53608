"""What the compilers make of the kernels, for GPUs that are not here.

    python -m benchmarks.compile_kernels [--json FILE]         (make kernels)

    launcher(meta tensors) --> what it would launch --> triton.compile for sm_80, sm_90, sm_100, gfx942 --> machine code

The shapes are those of real models in bfloat16: heads of 64 and 128, groups of 1, 4 and 8 query heads, blocks of 16,
vocabularies of 49,152 and 151,936; experts as in Mixtral 8x7B (2 of 8) and Qwen3-30B-A3B (8 of 128).
The launchers themselves are called, on tensors without memory, so what is compiled is what would run: same tiles, same
warps. Registers, stack and shared memory are read from the machine code: NVIDIA's by cuobjdump, AMD's from its text.
A register that does not fit is spilled to the stack, in slow memory: no kernel may need one. Whether the products use
the matrix units is read from the instructions (mma.sync, wgmma and tcgen05 on NVIDIA, v_mfma on AMD).

Nothing is run and nothing is timed: how fast a kernel is, only a GPU can say (benchmarks/kernels.py)."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.compile_cases import cases

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
MATRIX_UNITS = ("tcgen05.mma", "wgmma.mma_async", "mma.sync", "v_mfma")
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}
HAVE_FP8 = ("sm_90", "sm_100")  # with these eight bits: gfx942 has others
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Launch(NamedTuple):
    """What a launcher asked Triton for."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One kernel at one shape on one target."""

    kernel: str
    shape: str
    target: str
    registers: int
    stack: int  # bytes: where spilled registers go
    shared: int  # bytes
    matrix_unit: str  # the instruction, or "" if the kernel multiplies no matrices


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Inside, launching a kernel of ours only notes what would be launched."""
    launches: list[Launch] = []
    run = triton.JITFunction.run

    def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(Launch(kernel, args, kwargs))

    triton.JITFunction.run = note
    try:
        yield launches
    finally:
        triton.JITFunction.run = run


def to_source(launch: Launch) -> tuple[ASTSource, dict[str, int]]:
    """The kernel with the types of its arguments, specialised as a launch would, and the options of the launch."""
    names = launch.kernel.arg_names
    values = dict(zip(names, launch.args, strict=False)) | launch.kwargs
    options = {name: values.pop(name) for name in ("num_warps", "num_stages", "enable_fp_fusion") if name in values}
    signature, constants, attrs = {}, {}, {}
    for i, name in enumerate(names):
        value = values[name]
        if launch.kernel.params[i].is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[name], constants[(i,)] = "constexpr", value
            continue
        signature[name] = type_of(value)
        aligned = isinstance(value, Tensor) and not launch.kernel.params[i].do_not_specialize_on_alignment
        if aligned or (isinstance(value, int) and value % 16 == 0):
            attrs[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature, constants, attrs), options


def type_of(value: Tensor | float) -> str:
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, int):
        return "i32" if abs(value) < 2**31 else "i64"
    return "fp32"


def compile_for(target: str, shape: str, launch: Launch) -> Row:
    source, options = to_source(launch)
    compiled = triton.compile(source, target=TARGETS[target], options=options)
    code = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    registers, stack = nvidia_usage(compiled.asm["cubin"]) if "cubin" in compiled.asm else amd_usage(code)
    unit = next((name for name in MATRIX_UNITS if name in code), "")
    return Row(source.name.removesuffix("_kernel"), shape, target, registers, stack, compiled.metadata.shared, unit)


def nvidia_usage(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([CUOBJDUMP, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    return number(r"REG:(\d+)", text), number(r"STACK:(\d+)", text) + number(r"LOCAL:(\d+)", text)


def amd_usage(code: str) -> tuple[int, int]:
    """Vector registers a thread (those for matrices among them), and bytes of stack."""
    return number(r"\.vgpr_count:\s+(\d+)", code), number(r"\.private_segment_fixed_size:\s+(\d+)", code)


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, f"no {pattern} in what the compiler's tools say"
    return int(found[1])


def compile_all(targets: list[str], few: bool = False) -> Iterator[Row]:
    """few: of each kernel the last shape, and every fifth from the first on."""
    shapes: defaultdict[str, list[tuple[str, Launch]]] = defaultdict(list)
    for shape, call in cases():
        with recorded() as launches:
            call()
        for launch in launches:
            shapes[launch.kernel.__name__].append((shape, launch))
    for chosen in shapes.values():
        for shape, launch in dict([*chosen[::5], chosen[-1]]).items() if few else chosen:
            yield from (compile_for(target, shape, launch) for target in targets if can_run(target, launch))


def can_run(target: str, launch: Launch) -> bool:
    return target in HAVE_FP8 or not any(
        isinstance(arg, Tensor) and arg.dtype == torch.float8_e4m3fn for arg in launch.args
    )


def show(row: Row) -> None:
    name = f"{row.kernel} ({row.shape})"
    memory = f"{row.registers:>4} registers {row.stack:>4} B stack {row.shared:>7} B shared"
    print(f"{row.target:<7} {name:<52} {memory}  {row.matrix_unit}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_kernels", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--json", type=Path, help="write the table there too")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--few", action="store_true", help="a few shapes of each kernel")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET"):
        sys.exit("TRITON_INTERPRET is set: Triton interprets kernels, it does not compile them (unset it)")
    rows = []
    for row in compile_all(args.targets, args.few):
        show(row)
        rows.append(row)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    spilling = sum(row.stack > 0 for row in rows)
    print(f"{len(rows)} compiled, {spilling} need a stack")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
