"""The plain-Python model beside an engine: what each request must say, and what everybody must be told.

    ledger.add / abort / step        told everything the engine is told, and what the engine's trace says it did
    check_decision, check_counts     left to the policies of each level: policies.py

A ledger never looks inside an engine: it keeps its own tokens, queues and block counts, and says with a sentence what a
step broke. It decides nothing either: it only checks, so it shares no line of thought with the schedulers. A request
for n answers is n entries that share a name: the trace adds up what they ran, an output has them all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minipaged.config import EngineConfig
from minipaged.outputs import RequestOutput
from minipaged.trace import StepRecord

from .fake_model import Answer, spoken_text
from .worlds import Visit


@dataclass(eq=False)
class Known:
    """What the ledger knows of one choice of a request."""

    name: str
    visit: Visit
    arrival: int
    choice: int
    answer: Answer  # with memory enough
    num_said: int = 0
    num_computed: int = 0
    num_blocks: int = 0
    num_preemptions: int = 0
    finish_reason: str | None = None

    @property
    def spoken(self) -> tuple[object, ...]:
        """What is to be heard of it: everything so far, and why it ended if it did."""
        stop_reason = self.answer.stop_reason if self.finish_reason == "stop" else None
        text = spoken_text(self.answer, self.num_said, self.visit.params, self.finish_reason)
        return self.choice, list(self.answer.token_ids[: self.num_said]), text, self.finish_reason, stop_reason

    @property
    def num_tokens(self) -> int:
        return len(self.visit.prompt) + self.num_said

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_computed


def says(sentence: str, holds: bool, **facts: object) -> None:
    assert holds, f"{sentence}: {facts}"


def together(amounts: Mapping[Known, int]) -> dict[str, int]:
    """As a trace counts: the choices of a request as one, in the place of the first of them."""
    sums: dict[str, int] = {}
    for known, amount in amounts.items():
        sums[known.name] = sums.get(known.name, 0) + amount
    return sums


def heard(output: RequestOutput) -> tuple[object, ...]:
    """An output in the shape of Ledger.spoken."""
    said = [(each.index, each.token_ids, each.text, each.finish_reason, each.stop_reason) for each in output.outputs]
    return output.prompt_token_ids, said, output.finished, output.num_preemptions


class Ledger:
    """What all levels have in common: tokens, outputs, ends and counts."""

    def __init__(self, config: EngineConfig):
        self.config = config
        self.waiting: list[Known] = []
        self.running: list[Known] = []
        self.choices: dict[str, list[Known]] = {}  # of whoever had a name last
        self.ran: dict[Known, int] = {}  # in this step: check_decision says how much
        self.num_arrivals = 0
        self.num_steps = 0
        self.work = 1  # more steps than everything so far could need one after the other

    def key(self, known: Known) -> tuple[int, ...]:
        by_priority = self.config.scheduling_policy == "priority"
        place = (known.arrival, known.choice)
        return (known.visit.priority, *place) if by_priority else place

    @property
    def live(self) -> set[str]:
        """A name lives as long as one of its choices."""
        return {known.name for known in [*self.waiting, *self.running] if not known.finish_reason}

    def refuses(self, name: str, visit: Visit) -> bool:
        """Policies 1, 3 and 14."""
        n, limit, m = len(visit.prompt), self.config.max_model_len, visit.params.max_tokens
        too_long = n > limit - 1 or (m is not None and n + m > limit)
        return too_long or self.num_blocks(n) > self.config.num_blocks or name in self.live

    def num_blocks(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.config.block_size)

    def add(self, name: str, visit: Visit, answers: list[Answer]) -> None:
        self.choices[name] = [Known(name, visit, self.num_arrivals, i, answer) for i, answer in enumerate(answers)]
        self.waiting = sorted([*self.waiting, *self.choices[name]], key=self.key)
        self.num_arrivals += 1
        self.work += sum((len(visit.prompt) + len(each.token_ids)) * (1 + len(each.token_ids)) for each in answers)

    def abort(self, name: str) -> None:
        for known in self.choices.get(name, []):
            if not known.finish_reason:
                known.finish_reason = "abort"
                self.forget(known)

    def forget(self, known: Known) -> None:
        """Whoever is aborted leaves at once, and so do its blocks."""
        queue = self.waiting if known in self.waiting else self.running
        queue.remove(known)

    def step(self, record: StepRecord, outputs: list[RequestOutput]) -> None:
        self.num_steps += 1
        says("nobody starves", self.num_steps <= self.work, steps=self.num_steps, bound=self.work)
        self.check_decision(record)
        self.check_outputs(record, outputs)
        self.check_counts(record)

    def check_decision(self, record: StepRecord) -> None:
        raise NotImplementedError

    def check_outputs(self, record: StepRecord, outputs: list[RequestOutput]) -> None:
        """Whoever reached its end says exactly one token, and it is the right one."""
        loud = set()
        for known, ran in self.ran.items():
            known.num_computed += ran
            if known.num_pending == 0:
                self.speak(known)
                loud.add(known.name)
        expected = {name: self.spoken(self.choices[name]) for name in loud}
        got = {output.request_id: heard(output) for output in outputs}
        says("one output for whoever has news", len(got) == len(outputs) and got == expected, got=got, due=expected)

    def speak(self, known: Known) -> None:
        """One token more; after the last one of an answer that ends with "error", the row is NaN and says nothing.

        The newest token has no slot yet: with one token more than the pool has slots, it can grow no more."""
        answer, num_slots = known.answer, self.config.num_blocks * self.config.block_size
        is_nan = known.num_said == len(answer.token_ids)
        known.num_said += not is_nan
        if is_nan or (known.num_said == len(answer.token_ids) and answer.finish_reason != "error"):
            known.finish_reason = answer.finish_reason
        elif known.num_tokens > num_slots:
            known.finish_reason = "length"

    def spoken(self, choices: list[Known]) -> tuple[object, ...]:
        """What a request's output must be: all its choices, those that have no news too."""
        finished, num_preemptions = all(c.finish_reason for c in choices), sum(c.num_preemptions for c in choices)
        return choices[0].visit.prompt, [known.spoken for known in choices], finished, num_preemptions

    def check_counts(self, record: StepRecord) -> None:
        raise NotImplementedError

    def check_ends(self, record: StepRecord, done: list[Known]) -> None:
        says("the trace names who finished", record.finished == [known.name for known in done], record=record)
        counts = (record.num_waiting, record.num_running)
        says("the trace counts who is left", counts == (len(self.waiting), len(self.running)), record=record)
