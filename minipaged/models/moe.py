"""Many small MLPs in the place of one: a router sends each token to k of them and adds up what they say.

    x [T, M] --router--> logits [T, E] --> chosen [T, k], weights [T, k]        the k largest of the softmax
    a chosen expert      down(silu(gate x) * up x)                              k / E of the layer's weights per token
    out [t]              sum over j of weights[t, j] * what expert chosen[t, j] says of x[t]
                         + sigmoid(shared_gate x) * shared expert, to whom every token goes, if there is one

Where the experts are is a part of its own: here (experts.py), or spread over the ranks, each on one of them
(parallel/expert_parallel.py). Both return this rank's summand, as the shared expert does, and one all-reduce behind
it all makes the sum. Invariant: a token's result depends on no other token. (From level 07.)"""

from torch import Tensor

from ..parallel.expert_parallel import SpreadExperts
from ..parallel.groups import Alone
from ..parallel.layers import Build, Piece, Pieces
from ..parallel.portion import split
from .config import ModelConfig
from .expert_config import ExpertConfig
from .experts import Experts, Names
from .mlp import MLP

LAYOUTS: dict[str, tuple[str, Names]] = {"mixtral": ("block_sparse_moe", ("w1", "w3", "w2"))}  # in a checkpoint
USUAL: tuple[str, Names] = ("mlp", ("gate_proj", "up_proj", "down_proj"))


class MoE:
    def __init__(self, config: ModelConfig, experts: ExpertConfig, build: Build):
        self.name, self.names = LAYOUTS.get(config.kind, USUAL)
        self.k, self.renormalize, self.route = experts.num_chosen, experts.renormalize, build.ops.route
        self.router = build.linear(experts.num_experts, config.hidden_size, bias=False)
        self.experts = make_experts(experts, config.hidden_size, build)
        self.shared = SharedExpert(config, experts.shared_size, build) if experts.shared_size else NobodyElse()
        self.group = build.group

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, M] -> [T, M]"""
        weights, chosen = self.route(self.router(x), self.k, self.renormalize)
        return self.group.all_reduce(self.shared.join(self.experts(x, weights, chosen), x))

    def idle(self) -> None:
        """A step without a token, in which others may have some for the experts here."""
        self.experts.idle()

    def checkpoint(self, layer: str) -> Pieces:
        name = f"{layer}.{self.name}"
        pieces = {f"{name}.gate.weight": Piece(self.router.weight)} | self.shared.checkpoint(name)
        return pieces | self.experts.checkpoint(f"{name}.experts", self.names)

    def pack(self) -> None:
        """The experts stay as they are: they may move."""
        self.router.pack()
        self.shared.pack()


def make_experts(config: ExpertConfig, hidden_size: int, build: Build) -> Experts | SpreadExperts:
    if build.experts.size > 1:
        return SpreadExperts(config, hidden_size, build)
    features = split(config.intermediate_size, build.group.size)[build.group.rank]
    return Experts(tuple(range(config.num_experts)), hidden_size, features, build)


class SharedExpert:
    """An MLP for every token, and a gate of one number that says how much it counts."""

    def __init__(self, config: ModelConfig, size: int, build: Build):
        features = split(size, build.group.size)[build.group.rank]
        self.mlp = MLP("shared_expert", config.hidden_size, features, bias=False, build=build._replace(group=Alone()))
        self.gate = build.linear(1, config.hidden_size, bias=False)

    def join(self, out: Tensor, x: Tensor) -> Tensor:
        """out, x [T, M] -> out and what the shared expert says of x"""
        return out + self.gate(x).sigmoid() * self.mlp(x)

    def checkpoint(self, name: str) -> Pieces:
        return {f"{name}.shared_expert_gate.weight": Piece(self.gate.weight)} | self.mlp.checkpoint(name)

    def pack(self) -> None:
        self.mlp.pack()
        self.gate.pack()


class NobodyElse:
    """No shared expert."""

    def join(self, out: Tensor, x: Tensor) -> Tensor:
        return out

    def checkpoint(self, name: str) -> Pieces:
        return {}

    def pack(self) -> None:
        pass
