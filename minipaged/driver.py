"""Requests arrive when they arrive; the engine steps until nobody is left; a stopwatch looks on from outside.

    arrival_s   0.0   0.0        1.5              a request is added when its time has come
    steps       | 1 | 2 | 3 |    | 4 | 5 |        with nothing to do, the loop sleeps until the next arrival
    tokens        a   ab  b        c   c          every token is timed at the end of the step that gave it

Ctrl-C, or a step that raises, aborts whoever still runs. Invariant: when `go` is over, every request has an output and
nothing of this run is left in the engine. The driver knows an engine's public verbs, and nothing of any level, so one
driver serves them all. (From level 01.)"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

from .config import EngineConfig
from .desk import FrontDesk
from .detokenizer import Detokenizer
from .outputs import CompletionOutput, RequestOutput
from .sampling_params import SamplingParams
from .sequence import Sequence as TokenSequence
from .trace import StepTrace

LONGEST_NAP_S = 60.0  # an arrival may lie further off than time.sleep can count


class Clocked(Protocol):
    """A model that knows how long it has been inside its forward, in seconds."""

    @property
    def forward_s(self) -> float: ...


class AnyEngine(Protocol):
    """What every level's Engine offers to those who drive it or look on."""

    config: EngineConfig
    desk: FrontDesk
    trace: StepTrace

    @property
    def model(self) -> Clocked: ...
    @property
    def holders(self) -> list[TokenSequence]: ...
    def add_request(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> str: ...
    def step(self) -> list[RequestOutput]: ...
    def abort(self, request_id: str) -> None: ...
    def has_unfinished_requests(self) -> bool: ...


@dataclass(frozen=True)
class Request:
    """What somebody asks for, and when: arrival_s counts from the start of the run."""

    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    arrival_s: float = 0.0


@dataclass
class Record:
    """One request as seen from outside; times in seconds from the start of the run. end_s: None if it was aborted."""

    request: Request
    request_id: str | None = None
    output: RequestOutput | None = None
    choice_times: list[list[float]] = field(default_factory=list)  # of each choice, when each of its tokens came
    end_s: float | None = None

    def __post_init__(self) -> None:
        self.choice_times = self.choice_times or [[] for _ in range(self.request.params.n)]

    @property
    def num_tokens(self) -> int:
        """Generated, by all choices together."""
        return sum(map(len, self.choice_times))

    @property
    def token_times(self) -> list[float]:
        """Of all choices together, in order: the first is the request's first token."""
        return sorted(chain.from_iterable(self.choice_times))

    def hear(self, output: RequestOutput, now: float) -> None:
        self.output = output
        for said, times in zip(output.outputs, self.choice_times, strict=True):
            times += [now] * (len(said.token_ids) - len(times))


OnStep = Callable[["Run", list[RequestOutput]], None]


class Run:
    """One run of a list of requests on one engine; `records` are in the order given."""

    def __init__(self, engine: AnyEngine, requests: Sequence[Request], *, numbered: bool = False):
        """With `numbered`, request ids are the strings of the indices; otherwise the engine chooses them."""
        self.engine = engine
        self.records = [Record(request, str(i) if numbered else None) for i, request in enumerate(requests)]
        self.due = sorted(self.records, key=lambda record: record.request.arrival_s)[::-1]  # the next one last
        self.live: dict[str, Record] = {}
        self.wall_s = self.model_s = 0.0
        self.num_steps, self.first_step = 0, len(engine.trace.steps)
        self.interrupted = False

    def go(self, on_step: OnStep = lambda run, outputs: None) -> "Run":
        """Run all requests to their ends. Ctrl-C aborts what still runs, and what is there stays."""
        self.start, forward_s = time.perf_counter(), self.engine.model.forward_s
        try:
            while self.due or self.engine.has_unfinished_requests():
                self.add_due()
                if self.engine.has_unfinished_requests():
                    on_step(self, self.step())
                else:
                    time.sleep(min(max(0.0, self.due[-1].request.arrival_s - self.now()), LONGEST_NAP_S))
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.wall_s, self.model_s = self.now(), self.engine.model.forward_s - forward_s
            self.abort_rest()
        return self

    def abort_rest(self) -> None:
        """Whoever has not ended gets "abort" and what they have; nothing of them stays in the engine."""
        for request_id in self.live:
            self.engine.abort(request_id)
        for record in self.records:
            if record.output is None or not record.output.finished:
                record.output = aborted(record, self.engine.desk.decode)
        while self.engine.has_unfinished_requests() and not self.engine.desk.live:
            # nothing new runs: level 01 gives its rows back one step after their last sequence ended; what is in
            # flight lands
            self.engine.step()

    def now(self) -> float:
        return time.perf_counter() - self.start

    def add_due(self) -> None:
        now = self.now()
        while self.due and self.due[-1].request.arrival_s <= now:
            record = self.due.pop()
            want = record.request
            record.request_id = self.engine.add_request(
                want.prompt_token_ids, want.params, record.request_id, want.priority, want.cache_salt
            )
            self.live[record.request_id] = record

    def step(self) -> list[RequestOutput]:
        outputs = self.engine.step()
        self.num_steps += 1
        now = self.now()
        for output in outputs:
            if record := self.live.get(output.request_id):  # others' requests may run on the same engine
                record.hear(output, now)
                if output.finished:
                    record.end_s = now
                    del self.live[output.request_id]
        return outputs


def shut_down(engine: Any) -> None:
    """End what runs for an engine elsewhere; before level 06 nothing does."""
    getattr(engine, "shutdown", lambda: None)()


def aborted(record: Record, decode: Detokenizer) -> RequestOutput:
    """The output of a request that did not come to its own end, or did not even begin; a choice that did keeps its."""
    nothing = [CompletionOutput(i, [], None, None, decode, lambda is_over: "") for i in range(record.request.params.n)]
    prompt = list(record.request.prompt_token_ids)
    output = record.output or RequestOutput(record.request_id or "", prompt, nothing, finished=False)
    outputs = [said if said.finish_reason else replace(said, finish_reason="abort") for said in output.outputs]
    return replace(output, outputs=outputs, finished=True)
