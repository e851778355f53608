"""One engine and its inbox: commands are taken between steps, and each step's news go out as one report.

    take(Add)  take(Abort)  | turn -> Report |  take(Add)  | turn -> Report |  turn -> Report |   ... nothing: it sleeps

No process, no socket, no clock: whoever owns the loop calls `take` for what has come and `turn` while something is due.
Invariant: a report says of each request only what no report said before; nobody who is not live is spoken of.
(From level 07.)"""

from collections.abc import Iterable

from ..outputs import CompletionOutput, RequestOutput
from ..sampling_params import SamplingParams
from .messages import Abort, Add, Answer, Ask, Command, Event, Gain, News, Report, Turn
from .pace import Pace
from .turnable import Turnable
from .view import look


class Known:
    """What is known outside of one request."""

    def __init__(self, ticket: int, num_choices: int):
        self.ticket = ticket
        self.num_tokens = [0] * num_choices
        self.ended = [False] * num_choices
        self.has_prompt_scores = False

    def news(self, output: RequestOutput) -> News:
        """What of it is new."""
        gains = [self.gain(said) for said in output.outputs if self.has_news(said)]
        prompt_scores = None if self.has_prompt_scores else output.prompt_scores
        self.has_prompt_scores = output.prompt_scores is not None
        return News(self.ticket, gains, output.num_preemptions, output.error, prompt_scores)

    def has_news(self, said: CompletionOutput) -> bool:
        is_over = said.finish_reason is not None
        return len(said.token_ids) > self.num_tokens[said.index] or is_over > self.ended[said.index]

    def gain(self, said: CompletionOutput) -> Gain:
        start = self.num_tokens[said.index]
        self.num_tokens[said.index], self.ended[said.index] = len(said.token_ids), said.finish_reason is not None
        return Gain(
            index=said.index,
            token_ids=said.token_ids[start:],
            finish_reason=said.finish_reason,
            stop_reason=said.stop_reason,
            num_cached_tokens=said.num_cached_tokens,
            scores=(said.scores or [])[start:],
        )


class EngineCore:
    """An engine with a ticket for each of its requests. pace: when it is its turn."""

    def __init__(self, engine: Turnable, pace: Pace):
        self.engine, self.pace = engine, pace
        self.known: dict[str, Known] = {}  # by request id
        self.names: dict[int, str] = {}  # ticket -> request id, of the same
        self.last_ticket = -1
        self.num_turns = 0

    @property
    def is_due(self) -> bool:
        return self.pace.is_due(self.engine)

    def turn(self) -> Report:
        self.num_turns += 1
        outputs = self.pace.turn(self.engine)
        news = [self.known[output.request_id].news(output) for output in outputs if output.request_id in self.known]
        for output in outputs:
            if output.finished:
                self.forget(output.request_id)
        return self.report(news)

    def take(self, command: Command) -> list[Event]:
        """Do as told; returns what there is to say at once. The engine's own errors pass through."""
        match command:
            case Add():
                return self.add(command)
            case Abort():
                return self.abort(command)
            case Turn():
                self.pace.owe()
            case Ask():
                return [self.answer(command)]
        return []

    def add(self, add: Add) -> list[Event]:
        """Whatever the engine refuses, although the front desk did not, ends with an error."""
        self.last_ticket = add.ticket
        try:
            params = SamplingParams(**add.params)
            self.engine.add_request(add.prompt_token_ids, params, add.request_id, add.priority, add.cache_salt)
        except (ValueError, TypeError) as error:
            return [self.report([News(add.ticket, [], error=str(error))])]
        self.known[add.request_id] = Known(add.ticket, params.n)
        self.names[add.ticket] = add.request_id
        return []

    def abort(self, abort: Abort) -> list[Event]:
        """Room that is free again is reported at once: there may be no next step."""
        if (name := self.names.get(abort.ticket)) is not None:
            self.engine.abort(name)
            self.forget(name)
        return [self.report([])]

    def forget(self, request_id: str) -> None:
        if known := self.known.pop(request_id, None):
            del self.names[known.ticket]

    def report(self, news: Iterable[News]) -> Report:
        engine, trace = self.engine, self.engine.trace
        steps = trace.take()
        for record in steps:
            record.t_s += trace.started_at or 0.0
        return Report(
            news=list(news),
            steps=steps,
            occupancy=engine.occupancy,
            last_ticket=self.last_ticket,
            num_turns=self.num_turns,
            forward_s=engine.model.forward_s,
        )

    def answer(self, ask: Ask) -> Answer:
        match ask.what:
            case "check":
                return Answer(ask.number, error=self.check())
            case "reset":
                return Answer(ask.number, done=self.engine.reset_prefix_cache())
            case "look":
                return Answer(ask.number, view=look(self.engine))
            case "rebalance":
                return Answer(ask.number, balances=self.engine.rebalance())

    def check(self) -> str | None:
        try:
            self.engine.check_integrity()
            assert self.known.keys() == self.engine.desk.live.keys(), "whoever is live has a ticket"
        except AssertionError as error:
            return str(error)
        return None
