"""One model and one server for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minipaged.config import EngineConfig
from minipaged.engine import Engine

from .model import OPTIONS, byte_model
from .running import Running, running
from .stand_in import ThreadLLM


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_model(tmp_path_factory.mktemp("bytes"))


def thread_llm(folder: Path, **options: Any) -> ThreadLLM:
    return ThreadLLM(Engine(EngineConfig(model=str(folder), **{**OPTIONS, **options})))


@pytest.fixture(scope="session")
def served(folder: Path) -> Iterator[Running]:
    with running(lambda: thread_llm(folder)) as server:
        yield server
