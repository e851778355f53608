"""An engine without a model, for tests of what stands around it: it starts in half a second, and fails on demand.

    [5, 6]    says 7 8 9 ...        the alphabet, as letters: "hij"
    NO_POWER in the prompt          the step that reads it raises
    BULLET                          ... kills its own process
    MUD                             ... and every step with such a prompt takes its time

`python -m tests.core.echo FOLDER` is a core of it; MINIPAGED_ECHO in the environment says how its start goes wrong."""

import os
import signal
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from minipaged.base import EngineBase
from minipaged.batch import advance
from minipaged.config import EngineConfig
from minipaged.core.process import serve
from minipaged.desk import FrontDesk
from minipaged.detokenizer import Detokenizer
from minipaged.parallel.balance import Balance
from minipaged.prefix import make_block_manager
from minipaged.scheduler import Scheduler
from minipaged.vocabulary import Vocabulary

VOCAB_SIZE, EOS = 26, 25
NO_POWER, BULLET, MUD = 21, 22, 23
STEP_S = 0.05
COMMAND = (sys.executable, "-m", "tests.core.echo")
CONFIG = {"num_blocks": 64, "block_size": 4, "max_model_len": 64, "max_num_seqs": 4}


def vocabulary() -> Vocabulary:
    tokenizer = Tokenizer(models.WordLevel({chr(ord("a") + i): i for i in range(VOCAB_SIZE)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    return Vocabulary(VOCAB_SIZE, frozenset({EOS}), None, Detokenizer(tokenizer), None)


class EchoEngine(EngineBase):
    """Says the letter after the last one."""

    def __init__(self, config: EngineConfig):
        super().__init__(FrontDesk(config, vocabulary()), Scheduler(config, make_block_manager(config)))
        self.num_batches = self.num_dummies = 0
        self.forward_s = 0.0
        self.is_shut = False

    @property
    def model(self):
        return self

    def step(self):
        plan = self.scheduler.schedule()
        tokens = [[self.say(chunk.seq.tokens)] if chunk.reaches_end else [] for chunk in plan.chunks]
        self.num_batches += bool(plan.chunks)
        advance(plan.chunks, tokens)
        time.sleep(STEP_S if any(MUD in chunk.seq.tokens for chunk in plan.chunks) else 0)
        return self.retire(plan.chunks, tokens)

    def say(self, tokens):
        if tokens[-1] == NO_POWER:
            raise RuntimeError("no power")
        if tokens[-1] == BULLET:
            os.kill(os.getpid(), signal.SIGKILL)
        return (tokens[-1] + 1) % 20

    def run_dummy(self):
        self.num_batches += 1
        self.num_dummies += 1

    def rebalance(self):
        load = [self.num_batches, 0]  # one expert did it all
        return [Balance(load, ((0, 1), (None, None)), ((0, None), (1, None)))]

    def check_alive(self):
        if os.environ.get("MINIPAGED_ECHO") == "loses a rank":
            raise RuntimeError("rank 1 died")

    def shutdown(self):
        self.is_shut = True


def make_engine(config: EngineConfig, replica: int, folder: Path) -> EchoEngine:
    match os.environ.get("MINIPAGED_ECHO"):
        case "refuses":
            raise ValueError("num_blocks 3 is\nnot enough")
        case "breaks":
            raise RuntimeError("no GPU today")
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleeps":
            time.sleep(600)
    return EchoEngine(config)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], make_engine))
