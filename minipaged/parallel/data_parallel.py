r"""More engines, one front desk: a router sends each request to one of them, and nothing else is shared.

    requests -> desk -> router --> replica 0    4 x waiting + running = 6
                               \-> replica 1    4 x waiting + running = 3    <- the next one goes here
                                   scheduler, blocks, keys and values, weights: each has its own

Each replica is the engine of level 06, unchanged, in a process of its own that turns at its own pace; where experts are
spread over them they keep one (core/pace.py). Invariant: what a request says does not depend on the number of replicas
or on which of them it came to: ids and seeds are given out here. (From level 07.)"""

from itertools import accumulate

from ..config import EngineConfig
from ..core.entry import Told
from ..core.messages import Answer, Holder, Question
from ..core.replicas import Replicas
from ..core.start import start_here, start_processes
from ..outputs import RequestOutput
from ..runner import ModelRunner
from ..sampling_params import SamplingParams
from ..sequence import Sequence
from ..trace import Occupancy, StepTrace
from .balance import Balance

LOOK_S = 1.0  # how often to ask whether an answer is late


class DataParallelEngine:
    """Route, and listen to all."""

    def __init__(self, config: EngineConfig, model: ModelRunner | None = None):
        is_here = config.data_parallel_size == 1 or config.distributed_executor_backend == "uniproc"
        self.replicas = Replicas(*(start_here(config, model) if is_here else start_processes(config)))
        self.config, self.desk = self.replicas.config, self.replicas.desk
        self.trace = StepTrace(self.config.block_size)
        self.replicas.ledger.observers.append(self.trace.steps.append)
        self.heard: list[Told] = []  # beside a question: reported by the next step

    def add_request(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> str:
        """Send a request to the replica that the router chooses and return its id.

        Raises as every level does, and EngineDeadError."""
        self.heard += self.replicas.poll(0)  # how do they stand by now?
        return self.replicas.add(prompt_token_ids, params, request_id, priority, cache_salt)

    def step(self) -> list[RequestOutput]:
        """Whatever is new anywhere; if nothing is, wait for the first."""
        told = self.heard or (self.replicas.poll() if self.has_unfinished_requests() else [])
        self.heard = []
        return [output for _, output in told]

    def abort(self, request_id: str) -> None:
        """In any state, any number of times, unknown ids too: never an error."""
        ended = {told.ticket for told in self.heard if told.output.request_id == request_id}  # without being told
        gone = {self.replicas.tickets[request_id]} if request_id in self.replicas.tickets else ended
        self.replicas.abort(request_id)
        self.heard = [told for told in self.heard if told.ticket not in gone] + self.replicas.poll(0)

    def has_unfinished_requests(self) -> bool:
        return bool(self.desk.live or self.heard or self.replicas.conductor.is_wanted(self.replicas))

    @property
    def occupancy(self) -> Occupancy:
        """How things stand, of all replicas together."""
        return self.replicas.occupancy

    @property
    def model(self) -> "DataParallelEngine":
        return self

    @property
    def forward_s(self) -> float:
        """Seconds in the model, of the replica that was there longest."""
        return max(replica.forward_s for replica in self.replicas.all)

    @property
    def holders(self) -> list[Sequence]:
        """Whoever holds memory anywhere, by asking; blocks of replica i are numbered behind those of replica i - 1."""
        views = [answer.view for answer in self.ask("look") if answer.view]
        first_blocks = accumulate((view.num_blocks for view in views), initial=0)
        return [portray(h, first) for view, first in zip(views, first_blocks, strict=False) for h in view.holders]

    def reset_prefix_cache(self) -> bool:
        """Forget all shared beginnings; False if a replica could not, for a request of its was running."""
        return all(answer.done for answer in self.ask("reset"))

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken invariant's name."""
        for answer in self.ask("check"):
            assert answer.error is None, answer.error
        assert self.desk.live.keys() == self.replicas.tickets.keys(), "whoever is live was sent to a replica"

    @property
    def balances(self) -> list[list[Balance]]:
        """What experts were asked, layer by layer, and where they went from there: an entry for each `rebalance`."""
        return list(self.replicas.balances)

    def rebalance(self) -> None:
        """Count what experts were asked, and move those that are spread; while nobody is served (core/conductor.py)."""
        assert not self.desk.live, "experts move between waves"
        while not self.replicas.conductor.is_at_rest(self.replicas):
            self.heard += self.replicas.poll()
        self.ask("rebalance")

    def ask(self, what: Question) -> list[Answer]:
        futures = self.replicas.ask(what)
        self.heard += self.replicas.poll(0)
        while not all(future.done() for future in futures):
            self.heard += self.replicas.poll(LOOK_S)
        return [future.result() for future in futures]

    def shutdown(self) -> None:
        """Leave no process behind; whoever has not ended ends with an error."""
        self.heard += self.replicas.close()


def portray(holder: Holder, first_block: int) -> Sequence:
    """A likeness, for whoever draws a picture."""
    seq = Sequence(holder.request_id, [0] * holder.num_tokens, SamplingParams(), holder.num_tokens)
    seq.num_computed_tokens, seq.choice = holder.num_computed_tokens, holder.index
    seq.block_table = [first_block + block for block in holder.block_table]
    return seq
