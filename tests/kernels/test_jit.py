"""What loops are compiled to, by looking at it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numba.core.codegen import get_host_cpu_features

from minipaged.kernels.jit import forget_older  # whose module also tells numba which registers to use
from minipaged.kernels.prefetch import fetch_row

ROOT = Path(__file__).parent.parent.parent
FEATURES = get_host_cpu_features()


def instructions(function, *args):
    """Of what numba makes of it, for these arguments."""
    work = njit(function, fastmath=True)
    work(*args)
    [text] = work.inspect_asm().values()
    return text


@pytest.mark.skipif(
    "+avx512fp16" not in FEATURES or "NUMBA_CPU_NAME" in os.environ or "NUMBA_CPU_FEATURES" in os.environ,
    reason="no registers of 512 bits here that may be filled",
)
def test_wide_registers_are_filled():
    def total(x):
        s = np.float32(0)
        for i in range(len(x)):
            s += x[i]
        return s

    assert "zmm" in instructions(total, np.ones(1000, np.float32))


@pytest.mark.skipif("+sse2" not in FEATURES, reason="no x86-64")
def test_a_row_is_asked_for_and_nothing_becomes_of_it():
    codes = np.arange(600, dtype=np.int8).reshape(3, 200)
    before = codes.copy()
    assert "prefetcht" in instructions(lambda x: fetch_row(x, 2), codes)
    assert np.array_equal(codes, before)


LOOPS = """
import torch
from minipaged.kernels.jit import agree_on_threads
from minipaged.kernels.silu_mul import silu_mul_cpu
agree_on_threads()
silu_mul_cpu(torch.ones(256, 4096))
from numba import get_num_threads
print(torch.get_num_threads(), get_num_threads())
"""


def test_loops_have_as_many_threads_as_torch_and_leave_it_its_own():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("NUMBA_NUM_THREADS", None)
    result = subprocess.run([sys.executable, "-c", LOOPS], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.stdout == "1 1\n", result.stderr


def test_compiled_code_that_is_older_than_any_kernel_is_forgotten(tmp_path):
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    ages = {"rope.py": 50, "layer.py": 90, "__pycache__/layer.rope.nbi": 60, "__pycache__/layer.norm.nbi": 40}
    for name, age in ages.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    forget_older(tmp_path)
    assert [path.name for path in cache.iterdir()] == ["layer.norm.nbi"]
