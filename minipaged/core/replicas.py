"""All replicas as one: a front desk for everybody, a router behind it, and outputs put together again from what is new.

    add   -> desk: check, id, seed -> router: which replica -> Add over the wire
    poll  <- reports: tokens are appended to our own copy of each choice, by the engine's own code
             (Sequence.append, StopStrings, report), so text, stops and logprobs come out as in the engine itself

Any thread may add, abort and ask; one polls. Invariant: whoever was let in is told of an end, whatever happens to its
replica: with an error if that died, while the others go on. (From level 07.)"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from threading import RLock

from ..desk import FrontDesk
from ..parallel.balance import Balance
from ..sampling_params import SamplingParams
from ..sequence import Sequence
from ..trace import Occupancy
from ..vocabulary import Vocabulary
from .conductor import make_conductor
from .counters import Counters
from .entry import Entry, Told
from .ledger import Ledger
from .messages import Abort, Add, Answer, Ask, Died, Event, Question, Report, pack_params
from .questions import Questions
from .router import Replica, make_router
from .wire import Lost, Wire, common

MOST_BALANCES = 1000  # are kept, the newest: a server may run for weeks
NOBODY = -1  # a ticket


class EngineDeadError(RuntimeError):
    """No replica is left; the reason is the first one's to die."""


class Replicas:
    """begin: what else is to be done with each new choice, before anything is heard of it."""

    def __init__(self, wire: Wire, vocabulary: Vocabulary, begin: Callable[[Sequence], None] = lambda seq: None):
        self.wire, self.config, self.begin = wire, common(wire.configs), begin
        self.desk, self.router = FrontDesk(self.config, vocabulary), make_router(self.config)
        pools = [config.num_blocks for config in wire.configs]
        self.all = [Replica(index, Occupancy(0, 0, pool, pool)) for index, pool in enumerate(pools)]
        self.ledger, self.counters = Ledger(self.all), Counters()
        self.conductor = make_conductor(self.config)
        self.entries: dict[int, Entry] = {}  # by ticket
        self.tickets: dict[str, int] = {}  # by request id
        self.balances: deque[list[Balance]] = deque(maxlen=MOST_BALANCES)  # of each layer, when experts were moved
        self.questions = Questions()
        self.numbers, self.lock = count(), RLock()
        self.ledger.observers.append(self.counters.count_step)

    @property
    def living(self) -> list[Replica]:
        return [replica for replica in self.all if replica.error is None]

    @property
    def error(self) -> str | None:
        """Why nobody is left; None as long as anybody is."""
        return None if self.living else self.all[0].error

    @property
    def occupancy(self) -> Occupancy:
        """As the living last said."""
        each = [Occupancy(0, 0, 0, 0), *(replica.occupancy for replica in self.living)]
        return Occupancy(*map(sum, zip(*each, strict=True)))

    def add(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> str:
        """Let a request in and send it on its way; returns its id. Raises as the desk does, and EngineDeadError."""
        self.desk.check(prompt_token_ids, params)
        return self.enter(prompt_token_ids, params, request_id, priority, cache_salt).request_id

    def enter(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Entry:
        """The second half of `add`, for who has been checked; the first may take its time, if there is a grammar."""
        with self.lock:
            if (reason := self.error) is not None:
                raise EngineDeadError(reason)
            bare = replace(params, structured_outputs=None)  # whoever only reads along follows no grammar
            choices = self.desk.register(prompt_token_ids, bare, request_id, priority, cache_salt)
            try:
                entry = self.dispatch(choices, params)
            except OverflowError:
                raise ValueError("a number in this request needs more than 64 bits") from None
            finally:
                if choices[0].request_id not in self.tickets:
                    self.desk.close(choices[0].request_id)
            self.conductor.conduct(self)
        return entry

    def dispatch(self, choices: list[Sequence], params: SamplingParams) -> Entry:
        first, ticket = choices[0], next(self.numbers)
        packed = pack_params(replace(params, seed=first.seed))
        for seq in choices:
            self.begin(seq)
        replica = self.router.choose(self.living, first.tokens, first.cache_salt)
        add = Add(ticket, first.request_id, list(first.tokens), packed, first.priority, first.cache_salt)
        self.wire.send(replica.index, add)
        replica.unseen[ticket] = len(choices)
        replica.num_sent += 1
        entry = self.entries[ticket] = Entry(ticket, replica, choices)
        self.tickets[first.request_id] = ticket
        return entry

    def abort(self, request_id: str) -> list[Told]:
        """In any state, any number of times, unknown ids too: never an error. The id is free at once."""
        with self.lock:
            return self.withdraw(self.tickets.get(request_id, -1))

    def withdraw(self, ticket: int) -> list[Told]:
        """Whoever's ticket this is, if anybody's still, ends with "abort"."""
        with self.lock:
            if (entry := self.entries.get(ticket)) is None:
                return []
            self.wire.send(entry.replica.index, Abort(ticket))
            entry.end("abort")
            return self.report([entry])

    def forget(self, entry: Entry) -> None:
        del self.entries[entry.ticket], self.tickets[entry.request_id]
        entry.replica.unseen.pop(entry.ticket, None)

    def poll(self, timeout_s: float | None = None) -> list[Told]:
        """Wait for news, of anybody; one output for whoever gained tokens or ended, however many reports have come."""
        events = self.wire.receive(timeout_s)
        with self.lock:
            heard = {entry.ticket: entry for index, event in events for entry in self.hear(self.all[index], event)}
            told = self.report(heard.values())
            self.questions.end_late()
            self.conductor.conduct(self)
        return told

    def hear(self, replica: Replica, event: Event | Lost) -> list[Entry]:
        """Returns whom it is about."""
        match event:
            case Report():
                return self.read(replica, event)
            case Answer():
                self.questions.answer(event)
                if event.balances and replica is self.living[0]:
                    self.balances.append(event.balances)  # all that share experts say the same
            case Died():
                return self.mourn(replica, event.error)
            case Lost():
                return self.give_up(replica, event.error)
        return []

    def read(self, replica: Replica, report: Report) -> list[Entry]:
        replica.occupancy, replica.forward_s = report.occupancy, report.forward_s
        replica.num_turns = report.num_turns
        replica.unseen = {ticket: n for ticket, n in replica.unseen.items() if ticket > report.last_ticket}
        for record in report.steps:
            self.ledger.write(replica, record)
        known = [(entry, news) for news in report.news if (entry := self.entries.get(news.ticket))]
        for entry, news in known:
            for gain in news.gains:
                self.counters.count_gain(entry.choices[gain.index], gain)
            entry.take(news)
        return [entry for entry, _ in known]

    def report(self, entries: Iterable[Entry]) -> list[Told]:
        """Each request's output, from everything that was heard of it so far; whoever has ended is forgotten."""
        told = []
        for entry in entries:
            told += [Told(entry.ticket, output) for output in self.desk.report(entry.choices)]
            if entry.request_id not in self.desk.live:
                for seq in entry.choices:
                    self.router.learn(entry.replica, seq.tokens, seq.cache_salt)
                self.forget(entry)
        return told

    def give_up(self, replica: Replica, error: str) -> list[Entry]:
        """Some of its news are lost, so nobody whom they may have been about can be told the truth."""
        lost = [entry for entry in self.entries.values() if entry.replica is replica]
        for ticket in [entry.ticket for entry in lost] or [NOBODY]:
            self.wire.send(replica.index, Abort(ticket))  # its report says how things stand
        for entry in lost:
            entry.fail(error)
        self.questions.give_up(lambda asked: asked.replica is replica, RuntimeError(error))
        return lost

    def mourn(self, replica: Replica, error: str) -> list[Entry]:
        """Its requests end with the reason. What is heard of it later (that its process ended) is no news."""
        if replica.error is not None:
            return []
        dead = self.conductor.bury_with(replica, self)
        for one in dead:
            who = "the engine" if len(self.all) == 1 else f"replica {replica.index}"
            one.error, one.unseen = f"{who} died: {error}", {}
        self.questions.give_up(lambda asked: asked.replica in dead, EngineDeadError(replica.error))
        left = [entry for entry in self.entries.values() if entry.replica in dead]
        for entry in left:
            entry.fail(entry.replica.error or "")
        return left

    def ask(self, what: Question) -> list[Future[Answer]]:
        """Of every living replica; answered between its steps, while somebody polls."""
        with self.lock:
            futures = []
            for replica in self.living:
                number = next(self.numbers)
                futures.append(self.questions.ask(number, replica))
                self.wire.send(replica.index, Ask(number, what))
        return futures

    def close(self, reason: str = "it was shut down") -> list[Told]:
        """Leave no process behind; whoever still waits is told why."""
        self.wire.close()
        with self.lock:
            return self.report([entry for replica in self.living for entry in self.mourn(replica, reason)])
