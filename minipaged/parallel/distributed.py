"""The model is elsewhere: each rank has a share of it, and the engine does not notice.

    execute(batch, guesses)     to every rank the batch; to the one that answers also what is wished of its rows
    a future                    resolved when that rank has drawn the tokens: decided once, and sent to all in
                                the next batch, as its token ids

    stages    rank 0 | B3      a batch is in one stage at a time, so as many may be
              rank 1 | B2      in flight as there are stages: nobody waits for work
              rank 2 | B1  ->  answers

What a user can do wrong is found out here, before any rank is started, or by a rank, which then says so. Invariant: the
pool is as large as the rank with the least memory can make it; after an error or `shutdown` no rank runs. (From level
06.)"""

import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..batch import Batch
from ..config import EngineConfig
from ..loading import check_experts, choose_device, load_draft
from ..memory import NOBODY, Beside, choose_max_model_len, measure
from ..models.config import ModelConfig, read_model_config
from ..models.hub import find_model
from ..runner import ModelRunner
from ..speculative.drafter import Guess
from ..tokenizer import load_vocabulary
from ..vocabulary import Vocabulary
from .balance import Balance
from .crew import Crew, Launcher
from .executor import Executor
from .meeting import Meeting
from .messages import (
    Answer,
    Ask,
    Load,
    Loaded,
    Order,
    Ready,
    Rebalance,
    Rebalanced,
    Reply,
    Report,
    Serve,
    bare,
    full,
)
from .place import Layout
from .worker import Result

LOAD_S = 1800.0  # for a rank to read its weights, and to compile its kernels
STEP_S = 300.0  # for all batches in flight
Kind = TypeVar("Kind", bound=Reply)


@dataclass
class Elsewhere:
    """What is known here of a model that is not."""

    reading: "Future[Vocabulary]"  # while the ranks read their weights
    model_config: ModelConfig
    drafts: dict[str, ModelRunner] = field(default_factory=dict)  # these are here, beside the scheduler

    @property
    def vocabulary(self) -> Vocabulary:
        return self.reading.result()


class DistributedExecutor(Executor):
    """launcher: whoever starts the ranks."""

    def __init__(self, config: EngineConfig, launcher: Launcher, meeting: Meeting):
        folder = find_model(config)
        model_config, config = read_model_config(folder), choose_device(config)
        config = replace(config, max_model_len=choose_max_model_len(config, model_config))
        self.layout, self.meeting = Layout.of(config), meeting
        self.max_concurrent_batches, self.answer_s = self.layout.num_stages, 0.0
        self.layout.check(model_config)
        check_experts(config, model_config)
        with ThreadPoolExecutor(1) as pool:
            self.target = Elsewhere(pool.submit(load_vocabulary, folder, model_config), model_config)
            self.crew = Crew(launcher, self.layout.num_ranks)
            self.send_home = weakref.finalize(self, self.crew.stop)  # at the latest when nobody knows us any more
            try:
                self.config = self.load(config, folder)
                self.vocabulary = self.target.vocabulary
            except BaseException:
                self.crew.leave(0.0)
                raise

    def load(self, config: EngineConfig, folder: Path) -> EngineConfig:
        """Have all ranks load their share; returns config with as many blocks as each of them has room for."""
        is_local = Path(config.model).expanduser().exists()  # from another folder, too
        model = str(folder.absolute()) if is_local else config.model
        theirs = asdict(replace(config, model=model, draft_model=None, speculative_method="ngram"))
        beside = self.load_draft(config)  # before they look how much memory is free
        address, first = self.open_meeting(), self.meeting.replica * self.layout.num_ranks
        orders = [Load(first + rank, theirs, address, beside) for rank in range(self.layout.num_ranks)]
        num_blocks = min(reply.num_blocks for reply in self.ask_all(Loaded, orders, LOAD_S))
        self.ask_all(Ready, [Serve(num_blocks)] * self.layout.num_ranks, LOAD_S)
        return replace(config, num_blocks=num_blocks)

    def load_draft(self, config: EngineConfig) -> Beside:
        """It is here, on what may be any rank's device; so all leave room for it, and the smallest pool decides."""
        return NOBODY if config.draft_model is None else measure(load_draft(config, self.target), config)

    def open_meeting(self) -> tuple[str, int]:
        """Where the ranks meet, for as long as the crew lives."""
        self.crew.store = store = self.meeting.find_store(self.crew.launcher.host)
        return store.host, store.port

    def ask_all(self, kind: type[Kind], orders: Iterable[Order], seconds: float) -> list[Kind]:
        """Everybody's answer. Raises ValueError for what a rank refuses, RankError for one that is gone."""
        answers = [self.crew.ask(rank, order, seconds) for rank, order in enumerate(orders)]
        return [reply for answer in answers if isinstance(reply := answer.result(), kind)]

    @property
    def forward_s(self) -> float:
        return self.answer_s + sum(draft.forward_s for draft in self.target.drafts.values())

    def execute(self, batch: Batch, guesses: list[Guess]) -> "Future[Result]":
        result: Future[Result] = Future()
        answering = self.layout.answering_rank
        others = [(rank, bare(batch)) for rank in range(self.layout.num_ranks) if rank != answering]
        answer = self.crew.ask(answering, full(batch, guesses), STEP_S, beside=others)
        answer.add_done_callback(partial(self.deliver, result))
        return result

    def deliver(self, result: "Future[Result]", answer: "Future[Reply]") -> None:
        if error := answer.exception():
            result.set_exception(error)
            return
        reply = answer.result()
        assert isinstance(reply, Answer), f"a batch was answered by {reply}"
        self.answer_s = reply.forward_s
        result.set_result(Result(reply.tokens, reply.measured))

    def rebalance(self) -> list[Balance]:
        """Layers come from the stages, in order; the slices of a stage all say the same."""
        orders = [Rebalance()] * self.layout.num_ranks
        replies = self.ask_all(Rebalanced, orders, STEP_S)
        return [balance for reply in replies[:: self.layout.tensor_size] for balance in reply.balances]

    def check_alive(self) -> None:
        self.crew.check_alive()

    def shutdown(self) -> None:
        self.send_home()

    def reports(self) -> list[Report]:
        """What each rank holds, has sent, and has done since the last time."""
        return self.ask_all(Report, [Ask()] * self.layout.num_ranks, STEP_S)
