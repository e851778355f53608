"""A figure without the machine, the versions and the commit it came from is an anecdote.

Everything here is read, never guessed: what cannot be found out is null."""

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = ("torch", "numba", "numpy", "transformers", "minipaged")
BUSY = 0.25  # running processes per core, one-minute mean, above which somebody else is at work


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": read_cpu_model(),
        "cores": count_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "os": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def count_cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_cpu_model() -> str | None:
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return found[1] if found else platform.processor() or None


def describe_versions() -> dict[str, str | None]:
    return {"python": platform.python_version(), **{name: find_version(name) for name in PACKAGES}}


def find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_commit() -> dict[str, Any]:
    """The commit, and whether files differ from it; nulls outside a git checkout."""
    commit = git("rev-parse", "HEAD")
    changes = git("status", "--porcelain")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def is_busy(machine: dict[str, Any]) -> bool:
    return bool(machine["load_before"] > BUSY * machine["cores"])
