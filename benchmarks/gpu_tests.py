"""The tests that a card can say something about, a process for each file: compiling is what takes its time.

    python -m benchmarks.gpu_tests --out FILE [--dry-run] [--seconds 80]

On a GPU Triton compiles a kernel for every head size, group and block that a test draws, on one core; a machine with
a GPU has many. A file that is not done in time is named, and what the others said stands. Exit code 1 if a test
failed."""

import argparse
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as Xml
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import ROOT, count_cores

Json = dict[str, Any]
KINDS = ("tests", "failures", "errors", "skipped")
OTHERS = ("tests/test_triton_ops.py", "tests/test_triton_sampling.py", "tests/test_graphs.py", "tests/test_memory.py")
FEW = ("tests/kernels/test_silu_mul.py",)
NO_TESTS = 5  # pytest's exit code when it found none


def find_files(dry: bool) -> list[str]:
    """Those that take longest first."""
    kernels = sorted((str(path.relative_to(ROOT)) for path in (ROOT / "tests/kernels").glob("test_*.py")), key=is_short)
    return list(FEW) if dry else [*kernels, *OTHERS]


def is_short(name: str) -> bool:
    return "attention" not in name and "moe" not in name


def run_file(name: str, folder: Path, end: float) -> Json:
    """What one file's tests said; nothing of a file that had to be ended."""
    path = folder / f"{Path(name).stem}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={path}", name]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**environment, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=max(1.0, end - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"file": name, "unfinished": True, "failed": []}
    found = read_report(path) if path.exists() else {"failed": [f"{name}: exit code {done.returncode}"]}
    words = done.stdout[-4000:] + done.stderr[-2000:] if done.returncode not in (0, NO_TESTS) else ""
    return {"file": name, "unfinished": False, "words": words, **found}


def read_report(path: Path) -> Json:
    """Counts, and the names of what failed."""
    root = Xml.parse(path).getroot()
    suites, cases = list(root.iter("testsuite")), root.iter("testcase")
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    counts = {kind: sum(int(suite.get(kind, 0)) for suite in suites) for kind in KINDS}
    return {**counts, "failed": [f"{case.get('classname')}.{case.get('name')}" for case in wrong]}


def add_up(files: list[Json]) -> Json:
    totals: Json = {kind: sum(found.get(kind, 0) for found in files) for kind in KINDS}
    failed = [name for found in files for name in found["failed"]]
    return {
        **totals,
        "failed": failed,
        "unfinished": [found["file"] for found in files if found["unfinished"]],
        "files": files,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tests", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the document's file")
    parser.add_argument("--dry-run", action="store_true", help="a short file")
    parser.add_argument("--seconds", type=float, default=80, help="for all of them (default 80)")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    with TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, count_cores() - 2)) as pool:
        files = list(pool.map(lambda name: run_file(name, Path(folder), end), find_files(args.dry_run)))
    document = add_up(files)
    args.out.write_text(json.dumps(document, indent=1))
    for found in files:
        print(
            found["file"], "unfinished" if found["unfinished"] else f"{found.get('tests', 0)} tests", *found["failed"]
        )
        print(found.get("words", ""), end="")
    return int(bool(document["failed"]))


if __name__ == "__main__":
    sys.exit(main())
