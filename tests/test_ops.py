"""Two makes of the same operations: they agree with the kernels' specifications, and so with each other."""

import os
import subprocess
import sys
from bdb import Bdb
from pathlib import Path

import pytest
import torch

from minipaged.config import EngineConfig
from minipaged.kernels.fused_moe import fused_moe_spec, sort_by_expert
from minipaged.kernels.rms_norm import add_rms_norm_spec, rms_norm_spec
from minipaged.kernels.rope import rope_spec
from minipaged.kernels.routing import route_spec
from minipaged.kernels.silu_mul import silu_mul_spec
from minipaged.loading import choose_device
from minipaged.ops import choose_ops
from tests.kernels.guard import DEVICE, assert_close, randn

ROOT = Path(__file__).parent.parent
TORCH = choose_ops("torch", torch.float32, torch.device(DEVICE))
TRITON = choose_ops("triton", torch.float32, torch.device(DEVICE))
x, residual, weight = randn(5, 24), randn(5, 24, seed=1), randn(24, seed=2)
chosen = torch.tensor([2, 0, 2, 3, 2], device=DEVICE)
heads, angles = randn(5, 3, 24), randn(5, 1, 12, seed=1)
ARGUMENTS = {
    "rms_norm": (x, weight, 1e-5),
    "add_rms_norm": (x, residual, weight, 1e-5),
    "rope": (heads, angles.cos(), angles.sin()),
    "silu_mul": (x,),
    "route": (x, 3, True),
    "fused_moe": (x, randn(4, 20, 24, seed=3), randn(4, 24, 10, seed=4), *sort_by_expert(chosen, 4)),
}
SPECS = {
    "rms_norm": rms_norm_spec,
    "add_rms_norm": add_rms_norm_spec,
    "rope": rope_spec,
    "silu_mul": silu_mul_spec,
    "route": route_spec,
    "fused_moe": fused_moe_spec,
}
on_a_cpu = pytest.mark.skipif(DEVICE == "cuda", reason="what a machine without a GPU does")


def results(operation, name):
    out = operation(*ARGUMENTS[name])
    return [part.float() for part in (out if isinstance(out, tuple) else (out,))]


@pytest.mark.parametrize("name", SPECS)
def test_torchs_operations_agree_with_the_kernels_specifications(name):
    for ours, theirs in zip(results(getattr(TORCH, name), name), results(SPECS[name], name), strict=True):
        assert_close(ours, theirs, largest=64 if name == "fused_moe" else 8)


@pytest.mark.parametrize("name", SPECS)
def test_tritons_operations_agree_with_torchs(name):
    for ours, theirs in zip(results(getattr(TRITON, name), name), results(getattr(TORCH, name), name), strict=True):
        assert_close(ours, theirs, largest=64 if name == "fused_moe" else 8)


@on_a_cpu
@pytest.mark.parametrize(("asked", "given"), [("auto", "torch"), ("torch", "torch"), ("triton", "triton")])
def test_a_cpu_gets_torch_unless_triton_is_asked_for_and_then_a_line_says_what_for(asked, given, capsys):
    assert choose_device(EngineConfig(attention_backend=asked)).attention_backend == given
    said = capsys.readouterr().err
    assert said.count("\n") == (given == "triton")
    assert ("debugger" in said) == (given == "triton")


@on_a_cpu
def test_bfloat16_is_refused_where_the_interpreter_would_multiply_bit_patterns():
    with pytest.raises(ValueError, match="dtype bfloat16"):
        choose_device(EngineConfig(attention_backend="triton", dtype="bfloat16"))


def in_a_new_process(text):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-c", text]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@on_a_cpu
def test_the_interpreter_needs_no_preparation():
    result = in_a_new_process(
        "from minipaged.ops import *; import sys; assert 'triton' not in sys.modules\n"
        "use_interpreter('float32'); ops = choose_ops('triton', torch.float32, torch.device('cpu'))\n"
        "print(ops.silu_mul(torch.ones(1, 2)).item())"
    )
    assert result.returncode == 0, result.stderr
    assert abs(float(result.stdout) - 0.7310586) < 1e-6


class Stops(Bdb):
    """A debugger that notes what it sees where it stops, and goes on."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def user_line(self, frame):
        if self.break_here(frame):
            self.seen.append((int(frame.f_locals["size"]), frame.f_locals["o_f"].handle.data.shape))
        self.set_continue()


@on_a_cpu
def test_a_breakpoint_stops_inside_a_kernel_by_its_path_through_the_link():
    kernel, debugger = ROOT / "minipaged" / "kernels" / "silu_mul_triton.py", Stops()
    line = next(n for n, text in enumerate(kernel.read_text().split("\n"), 1) if "m_f = o_f < size" in text)
    assert debugger.set_break(str(kernel), line) is None, "there is such a line"
    debugger.runcall(TRITON.silu_mul, x)
    assert debugger.seen == [(12, (16,))] * len(x)


@on_a_cpu
def test_who_imported_triton_before_is_told_what_to_set():
    result = in_a_new_process("import triton; from minipaged.ops import use_interpreter; use_interpreter('float32')")
    assert result.returncode == 1
    assert "set TRITON_INTERPRET=1" in result.stderr.splitlines()[-1]
