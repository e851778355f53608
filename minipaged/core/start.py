"""Cores are started by what config asks for: one in this process, or a process for each, the words read meanwhile.

    data_parallel_size 1                          in this process, behind the same wire
    data_parallel_size N                          N processes, each loads the model for itself
    ... distributed_executor_backend uniproc      all in this process, taking turns: for a debugger

Invariant: whoever is started here is gone when its wire is closed. (From level 07.)"""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..config import EngineConfig
from ..models.config import read_model_config
from ..models.hub import find_model
from ..tokenizer import load_vocabulary
from ..vocabulary import Vocabulary
from .loop import EngineCore
from .pace import OwnPace
from .processes import ProcessWire
from .wire import LocalWire, Wire

if TYPE_CHECKING:
    from ..runner import ModelRunner


def start_here(config: EngineConfig, model: "ModelRunner | None") -> tuple[Wire, Vocabulary]:
    """All replicas in this process; several share the model."""
    from ..engine import Engine  # late: it brings torch, and whoever only talks to processes needs none
    from ..loading import load_model
    from ..parallel.backends import make_executor

    if config.shares_experts:
        raise ValueError("enable_expert_parallel spreads experts over processes: not with uniproc, which has but one")
    if config.data_parallel_size > 1:
        model = model or load_model(config)
    engines = [Engine(config, executor=make_executor(config, model)) for _ in range(config.data_parallel_size)]
    return LocalWire([EngineCore(engine, OwnPace()) for engine in engines]), engines[0].desk.vocabulary


def start_processes(config: EngineConfig, timeout_s: float = 600.0) -> tuple[Wire, Vocabulary]:
    """A process for each replica. Raises ValueError for what cannot be, RuntimeError for what does not start."""
    if config.distributed_executor_backend == "torchrun":
        raise ValueError("torchrun's ranks join no engine that has a process of its own: use mp or ray")
    find_model(config)  # once, and not by all of them at once
    with ThreadPoolExecutor(1) as pool:
        vocabulary = pool.submit(read_vocabulary, config)
        wire = ProcessWire(config, config.data_parallel_size, timeout_s)
    try:
        return wire, vocabulary.result()
    except BaseException:
        wire.close()
        raise


def read_vocabulary(config: EngineConfig) -> Vocabulary:
    folder = find_model(config)
    return load_vocabulary(folder, read_model_config(folder))
