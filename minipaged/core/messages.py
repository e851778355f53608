"""What crosses the border between two processes is numbers and text in a few shapes, and nothing that could run.

    front                                    core
    Start(config)               ->
                                <-           Ready(config), every "auto" and None a fact; or Died(error)
    Add(ticket, prompt, ...)    ->           taken between two steps, as everything is
                                <-           Report(news, steps, ...), one a step: only what is new
    Abort(ticket)               ->
    Ask(number, "check")        ->   <-      Answer(number, ...)
    Turn()                      ->           where replicas keep one pace: run one batch, whatever there is
    Stop()                      ->           and the process is gone

A ticket is a request's number on this border. Its id may be used again as soon as it was aborted, its ticket never is:
what was still on its way for the one before finds nobody. Invariant: what cannot be read as one of these shapes raises
ValueError, and does nothing else. (From level 07.)"""

from dataclasses import fields
from typing import Any, Literal

import msgspec

from ..config import EngineConfig
from ..parallel.balance import Balance
from ..sampling_params import SamplingParams
from ..sequence import Scores
from ..trace import Occupancy
from ..trace.steps import StepRecord


class Message(msgspec.Struct, tag=True):
    """Anything that crosses."""


class Start(Message):
    """Become an engine. replica: which of config.data_parallel_size."""

    config: dict[str, Any]
    replica: int = 0


class Add(Message):
    """A request that the front desk let in. params: whatever is not a SamplingParams' default, its seed always."""

    ticket: int
    request_id: str
    prompt_token_ids: list[int]
    params: dict[str, Any]
    priority: int = 0
    cache_salt: str | None = None


class Abort(Message):
    """Unknown tickets too: never an error."""

    ticket: int


class Turn(Message):
    """Run one batch, real or made up, for the sake of the others."""


Question = Literal["check", "reset", "look", "rebalance"]


class Ask(Message):
    """check: do all invariants hold? reset: forget the prefix cache. look: who is where? rebalance: move experts as a
    plan has them; asked of all replicas at the same point of their turns, for they do it together."""

    number: int
    what: Question


class Stop(Message):
    """Leave nothing behind."""


class Gain(Message):
    """What one choice of a request has that was not told before."""

    index: int
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    scores: list[Scores] = []


class News(Message):
    """What a request has that was not told before; an error without gains ends all of its choices."""

    ticket: int
    gains: list[Gain]
    num_preemptions: int = 0
    error: str | None = None
    prompt_scores: list[Scores | None] | None = None


class Report(Message):
    """How things stand. last_ticket: the newest request that was taken; num_turns: steps that were made.
    steps: records that nobody has seen yet, t_s being their moments by time.perf_counter, which is the same for all
    processes of a machine."""

    news: list[News]
    steps: list[StepRecord]
    occupancy: Occupancy
    last_ticket: int
    num_turns: int
    forward_s: float


class Holder(Message):
    """A choice that holds memory. num_tokens: prompt and answer; num_computed_tokens: of them in the cache."""

    request_id: str
    index: int
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    block_table: list[int]


class View(Message):
    """Who is where: cached_blocks are free and remembered, waiting names whoever has no place yet."""

    num_blocks: int
    holders: list[Holder]
    waiting: list[str]
    cached_blocks: list[int]


class Answer(Message):
    """To a question; error: which invariant is broken. done: whether there was anything to forget. balances: of each
    layer with experts, what they were asked, and where they were and are."""

    number: int
    error: str | None = None
    done: bool = True
    view: View | None = None
    balances: list[Balance] = []


class Ready(Message):
    """The engine is there."""

    config: dict[str, Any]


class Died(Message):
    """The engine is no more, or never was: one line, and for those who want it the traceback. refused: the fault lies
    in what was asked for (ValueError, TypeError)."""

    error: str
    traceback: str = ""
    refused: bool = False


Command = Start | Add | Abort | Turn | Ask | Stop
Event = Ready | Report | Answer | Died

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode


def pack_config(config: EngineConfig) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in fields(config)}


def pack_params(params: SamplingParams) -> dict[str, Any]:
    return {f.name: value for f in fields(params) if (value := getattr(params, f.name)) != f.default}
