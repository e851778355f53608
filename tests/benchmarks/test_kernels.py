"""The kernels' benchmark runs anywhere, on whatever there is, and says which device that was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it takes minutes: run it by hand")
def test_every_kernel_is_measured_beside_its_specification_and_a_cpu_claims_nothing(tmp_path):
    path = tmp_path / "kernels.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-m", "benchmarks.kernels", "--json", path]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    document = json.loads(path.read_text())
    assert "no claim about any GPU" in document["device"]
    assert document["versions"]["triton"]
    ways = {}
    for figure in document["figures"]:
        assert figure["ms"] > 0
        ways.setdefault(figure["kernel"], set()).add(figure["way"])
    assert set(ways) == {
        "paged_attention", "write_kv", "rms_norm", "add_rms_norm", "rope", "silu_mul", "sample", "routing", "fused_moe",
    }  # fmt: skip
    assert all({"triton", "spec"} <= found for found in ways.values())
