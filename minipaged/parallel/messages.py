"""What driver and ranks say to each other is integers and bytes, typed at both ends: nothing is ever unpickled.

    driver  ->  rank     Load            the split, the config, where the others are met
                         Serve           so many blocks: be ready
                         Run             a batch, and what was guessed
                         Rebalance, Ask, Stop
    rank    ->  driver   Loaded, Ready, Answer, Rebalanced, Report: one for each that asks for one, in their order
                         Failed          at any time, and the last thing it says

One rank answers a Run: the one that has the logits. Only it is told what is wished of each row, and what was guessed;
all others get the bare batch. Invariant: what is decoded equals what was encoded, distributions of guesses bit for bit.
(From level 06.)"""

from collections import OrderedDict
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import torch

from ..batch import Batch, Measured, Row
from ..memory import NOBODY, Beside
from ..sampling_params import SamplingParams
from ..speculative.drafter import Guess
from .balance import Balance


class Load(msgspec.Struct, tag=True):
    """rank: who you are, of as many as config splits the model into. store: where all meet, a host and a port.
    beside: a draft model that the driver has, which may be on the same device."""

    rank: int
    config: dict[str, Any]
    store: tuple[str, int]
    beside: Beside = NOBODY


class Loaded(msgspec.Struct, tag=True):
    """How many blocks this rank has memory for."""

    num_blocks: int


class Serve(msgspec.Struct, tag=True):
    num_blocks: int


class Ready(msgspec.Struct, tag=True):
    pass


class WireRow(msgspec.Struct, array_like=True):
    """A Row, its params as bytes: they are the same in every step, and are read and checked once."""

    params: bytes
    seed: int
    position: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    held_back: frozenset[int]
    permitted: bytes | None


class WireGuess(msgspec.Struct, array_like=True):
    """A Guess; probs: float32, one row of V after the other."""

    token_ids: tuple[int, ...]
    probs: bytes | None


class Run(msgspec.Struct, tag=True):
    """batch has no rows: they come beside it, to whoever answers."""

    batch: Batch
    rows: list[WireRow] = []
    guesses: list[WireGuess] = []


class Answer(msgspec.Struct, tag=True):
    """forward_s: in the model since this rank began to serve."""

    tokens: list[list[int]]
    measured: list[Measured]
    forward_s: float


class Rebalance(msgspec.Struct, tag=True):
    """Count what experts were asked, and move those that are spread, together with all who share them."""


class Rebalanced(msgspec.Struct, tag=True):
    """Of each of this rank's layers that have experts."""

    balances: list[Balance]


class Ask(msgspec.Struct, tag=True):
    """What have you been doing?"""


class Span(msgspec.Struct, array_like=True):
    """One batch in one rank, in seconds of the machine's clock: when its work began, and when it was passed on."""

    start_s: float
    end_s: float


class Report(msgspec.Struct, tag=True):
    """A rank's memory, what it sent to others, by operation, and its batches since the last report."""

    weight_bytes: int
    kv_bytes: int
    sent_bytes: dict[str, int]
    spans: list[Span]

    def since(self, earlier: "Report") -> "Report":
        """This one, with what was sent after another."""
        sent = {name: number - earlier.sent_bytes.get(name, 0) for name, number in self.sent_bytes.items()}
        return Report(self.weight_bytes, self.kv_bytes, sent, self.spans)


class Stop(msgspec.Struct, tag=True):
    pass


class Failed(msgspec.Struct, tag=True):
    """is_refusal: what a user asked for cannot be; otherwise something broke. trace: for --debug."""

    message: str
    is_refusal: bool
    trace: str


Order = Load | Serve | Run | Rebalance | Ask | Stop
Reply = Loaded | Ready | Answer | Rebalanced | Report | Failed

LARGEST = 2**63 - 1
ENCODER = msgspec.msgpack.Encoder()
ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
PARAMS = msgspec.msgpack.Decoder(SamplingParams)
WRITTEN: "WeakKeyDictionary[SamplingParams, bytes]" = WeakKeyDictionary()
REMEMBERED_BYTES = 32 << 20  # as they are written; as objects they are about eight times as large


def full(batch: Batch, guesses: list[Guess]) -> Run:
    """For the rank that answers."""
    rows = [WireRow(write_params(row.params), *row[1:]) for row in batch.rows]
    return Run(batch._replace(rows=[]), rows, [write_guess(guess) for guess in guesses])


def bare(batch: Batch) -> Run:
    """For all others."""
    return Run(batch._replace(rows=[], known=[]))


def unfold(run: Run, device: torch.device) -> tuple[Batch, list[Guess]]:
    """What `full` was given."""
    rows = [
        Row(PARAMS_HERE.read(row.params), row.seed, row.position, row.prompt, row.output, row.held_back, row.permitted)
        for row in run.rows
    ]
    return run.batch._replace(rows=rows), [read_guess(guess, device) for guess in run.guesses]


def write_params(params: SamplingParams) -> bytes:
    """Without what is none of a rank's business: where an answer ends, and a grammar, which is in the row's bits.

    Written once while its request lives. Of whole numbers only top_k may be larger than 64 bits, and is off then."""
    if (data := WRITTEN.get(params)) is None:
        mine = replace(params, max_tokens=None, min_tokens=0, stop=(), structured_outputs=None)
        mine = replace(mine, num_speculative_tokens=None, top_k=min(params.top_k, LARGEST))
        data = WRITTEN[params] = ENCODER.encode(mine)
    return data


class Remembered:
    """Params that were read, by their bytes: the newest, up to num_bytes of them. A bias may be of all words."""

    def __init__(self, num_bytes: int):
        self.room, self.params = num_bytes, OrderedDict[bytes, SamplingParams]()

    def read(self, data: bytes) -> SamplingParams:
        if data not in self.params:
            self.params[data] = PARAMS.decode(data)
            self.room -= len(data)
        self.params.move_to_end(data)
        while self.room < 0 and len(self.params) > 1:
            oldest, _ = self.params.popitem(last=False)
            self.room += len(oldest)
        return self.params[data]


PARAMS_HERE = Remembered(REMEMBERED_BYTES)


def write_guess(guess: Guess) -> WireGuess:
    if guess.probs is None:
        return WireGuess(guess.token_ids, None)
    return WireGuess(guess.token_ids, guess.probs.float().cpu().contiguous().numpy().tobytes())


def read_guess(guess: WireGuess, device: torch.device) -> Guess:
    if guess.probs is None:
        return Guess(guess.token_ids)
    probs = torch.frombuffer(bytearray(guess.probs), dtype=torch.float32)
    return Guess(guess.token_ids, probs.view(len(guess.token_ids), -1).to(device))
