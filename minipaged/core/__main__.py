"""python -m minipaged.core FOLDER: an engine for whoever started this process; nothing for people to call."""

import sys
from pathlib import Path

from ..config import EngineConfig
from .process import serve
from .turnable import Turnable


def make_engine(config: EngineConfig, replica: int, folder: Path) -> Turnable:
    from ..engine import Engine  # late: the border stands before torch is there
    from ..parallel.backends import make_executor
    from ..parallel.meeting import OWN, Meeting

    meeting = Meeting(replica, folder) if config.shares_experts else OWN
    return Engine(config, executor=make_executor(config, meeting=meeting))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], make_engine))
