"""A question is answered, or its asker is told why not: nobody waits for an answer that will not come.

    ask -> on its way -> answered
                      -> the replica died, something that it said was lost, or ANSWER_S are over: an error

Invariant: a question that is not on its way any more has been answered, one way or the other. (From level 07.)"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from .messages import Answer
from .router import Replica

ANSWER_S = 300.0  # for a replica: it answers between two steps


class Asked(NamedTuple):
    replica: Replica
    answer: "Future[Answer]"
    deadline: float


class Questions:
    """on_their_way: by number."""

    def __init__(self) -> None:
        self.on_their_way: dict[int, Asked] = {}

    def ask(self, number: int, replica: Replica) -> "Future[Answer]":
        future = Future[Answer]()
        future.set_running_or_notify_cancel()  # who asked may leave, and the answer still has a place to go
        self.on_their_way[number] = Asked(replica, future, time.monotonic() + ANSWER_S)
        return future

    def answer(self, answer: Answer) -> None:
        if asked := self.on_their_way.pop(answer.number, None):  # None: it is too late
            asked.answer.set_result(answer)

    def give_up(self, is_lost: Callable[[Asked], bool], error: RuntimeError) -> None:
        for number, asked in list(self.on_their_way.items()):
            if is_lost(asked):
                del self.on_their_way[number]
                asked.answer.set_exception(error)

    def end_late(self) -> None:
        now = time.monotonic()
        late = RuntimeError(f"a replica did not answer within {ANSWER_S:g} s")
        self.give_up(lambda asked: asked.deadline < now, late)
