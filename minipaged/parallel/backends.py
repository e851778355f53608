"""Who runs the ranks is chosen once, by name; from then on nobody can tell.

    uniproc     this process: one rank                     executor.py
    mp          a child process for each rank              multiprocess.py
    torchrun    the processes that torchrun started        torchrun.py
    ray         actors that Ray places in its cluster      ray.py

Invariant: the executor's config names what was chosen, never "auto". (From level 06.)"""

from dataclasses import replace

from ..config import EngineConfig
from ..loading import choose_device, load_model
from ..runner import ModelRunner
from .crew import Launcher
from .distributed import DistributedExecutor
from .executor import Executor, UniprocExecutor
from .meeting import OWN, Meeting
from .multiprocess import Processes


def make_executor(config: EngineConfig, model: ModelRunner | None = None, meeting: Meeting = OWN) -> Executor:
    """The executor that config asks for; `model`, if it is loaded already, serves where one process is enough.
    meeting: where its ranks meet those of other replicas, if they share experts (level 07).

    Does not return in a process of torchrun's that is not to have the driver: there it is a rank until all is over."""
    config = replace(config, distributed_executor_backend=config.chosen_backend)
    if config.distributed_executor_backend == "uniproc":
        return UniprocExecutor(config, model or load_model(config))
    return DistributedExecutor(config, make_launcher(config), meeting)


def make_launcher(config: EngineConfig) -> Launcher:
    """Raises ValueError if what it needs is not here."""
    if config.distributed_executor_backend == "mp":
        return Processes()
    if config.distributed_executor_backend == "torchrun":
        from . import torchrun  # late, as below: each needs what the others do not

        return torchrun.Torchrun() if torchrun.is_driver() else torchrun.serve()
    try:
        from .ray import RayCluster
    except ModuleNotFoundError:
        needs = "pip install 'minipaged[ray]'"
        raise ValueError(f"distributed_executor_backend ray needs Ray: {needs}") from None
    return RayCluster(choose_device(config).device)
