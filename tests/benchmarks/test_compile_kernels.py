"""What only a compiler can say of the kernels, asked for every GPU they are meant for."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
UNITS = {
    "sm_80": {"mma.sync"},
    "sm_90": {"mma.sync", "wgmma.mma_async"},
    "sm_100": {"mma.sync", "tcgen05.mma"},
    "gfx942": {"v_mfma"},
}


def test_no_kernel_spills_registers_and_all_attention_multiplies_in_the_matrix_units(tmp_path):
    """A few shapes of each; `make kernels` compiles them all."""
    path = tmp_path / "rows.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-m", "benchmarks.compile_kernels", "--few", "--json", path]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(path.read_text())
    assert {row["kernel"] for row in rows} == {
        "paged_attention", "combine", "write_kv", "rms_norm", "rope", "silu_mul", "sample", "route", "grouped_product",
        "linear_int8", "linear_int4",
    }  # fmt: skip
    assert [row for row in rows if row["stack"]] == []
    for target, units in UNITS.items():
        for kernel in ("paged_attention", "grouped_product", "linear_int8", "linear_int4"):
            ours = {row["matrix_unit"] for row in rows if (row["kernel"], row["target"]) == (kernel, target)}
            assert ours == units


def test_an_interpreter_compiles_nothing_and_says_so():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "benchmarks.compile_kernels"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert "TRITON_INTERPRET is set" in result.stderr.splitlines()[-1]
