"""Wherever the experts are, a token hears the same from them; ranks without a token take part."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.models.expert_config import ExpertConfig
from minipaged.models.experts import Experts
from minipaged.ops import choose_ops
from minipaged.parallel.balance import place_evenly
from minipaged.parallel.expert_parallel import Routes, SpreadExperts
from minipaged.parallel.groups import Alone
from minipaged.parallel.layers import Build
from minipaged.parallel.portion import split
from tests.parallel.threads import Table, Threads, in_step

CPU, HIDDEN, SIZE = torch.device("cpu"), 8, 6
NAMES = ("gate", "up", "down")


def make_build(spread, tensor=None, num_redundant=0):
    ops = choose_ops("torch", torch.float32, CPU)
    return Build(ops, torch.float32, CPU, None, tensor or Alone(), spread, num_redundant)


def fill(experts):
    """Each expert's matrices are its own, wherever it is; what belongs to nobody is NaN."""
    matrices = experts.experts if isinstance(experts, SpreadExperts) else experts
    matrices.gate_up.fill_(torch.nan)
    matrices.down.fill_(torch.nan)
    for name, piece in experts.checkpoint("x", NAMES).items():
        _, expert, part, _ = name.split(".")
        seed = 10 * int(expert) + NAMES.index(part)
        shape = (HIDDEN, SIZE) if part == "down" else (SIZE, HIDDEN)
        piece.memory.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(seed))[piece.part])
    return experts


class World:
    """num_tokens of each replica, each of `tensor_size` ranks; experts over all of them."""

    def __init__(self, num_tokens, tensor_size, num_experts, k, num_redundant, seed=0, hot=0):
        generator = torch.Generator().manual_seed(seed)
        self.tensor_size, self.num_redundant = tensor_size, num_redundant
        self.config = ExpertConfig(num_experts, k, SIZE, renormalize=True, shared_size=None)
        self.tokens = [torch.randn(n, HIDDEN, generator=generator) for n in num_tokens]
        scores = [torch.rand(n, num_experts, generator=generator) for n in num_tokens]
        for score in scores:
            score[: len(score) * hot // 100, 0] = 2.0
        self.chosen = [score.topk(k).indices for score in scores]
        self.weights = [torch.rand(n, k, generator=generator) for n in num_tokens]

    @property
    def num_ranks(self):
        return len(self.tokens) * self.tensor_size

    def expected(self):
        everybody = fill(Experts(tuple(range(self.config.num_experts)), HIDDEN, range(SIZE), make_build(Alone())))
        return [everybody(*asked) for asked in zip(self.tokens, self.weights, self.chosen, strict=True)]

    def run(self, num_plans=0):
        """What each replica hears, after so many plans made and carried out; and the plans, and the ranks' parts."""
        tables = [Table(self.tensor_size) for _ in self.tokens]

        def work(rank, group):
            replica, t = divmod(rank, self.tensor_size)
            tensor = Threads(t, tables[replica])
            spread = fill(SpreadExperts(self.config, HIDDEN, make_build(group, tensor, self.num_redundant)))
            asked = self.tokens[replica], self.weights[replica], self.chosen[replica]
            heard, plans = tensor.all_reduce(spread(*asked)), []
            for _ in range(num_plans):
                plans.append(spread.rebalance())
                heard = tensor.all_reduce(spread(*asked))
            return heard, plans, spread

        return in_step(self.num_ranks, work)

    def check(self, num_plans=0):
        results, expected = self.run(num_plans), self.expected()
        for rank, (heard, _, _) in enumerate(results):
            torch.testing.assert_close(heard, expected[rank // self.tensor_size], rtol=1e-4, atol=1e-5)
        return results


@st.composite
def worlds(draw):
    num_experts, tensor_size = draw(st.integers(1, 9)), draw(st.sampled_from([1, 1, 2]))
    num_tokens = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4 // tensor_size))
    k = draw(st.integers(1, min(3, num_experts)))
    seed, hot = draw(st.integers(0, 99)), draw(st.sampled_from([0, 100]))
    return World(num_tokens, tensor_size, num_experts, k, draw(st.integers(0, 4)), seed, hot)


@given(worlds(), st.integers(0, 2))
@settings(max_examples=60)
def test_a_token_hears_the_same_wherever_the_experts_are_and_after_they_moved(world, num_plans):
    world.check(num_plans)


@pytest.mark.parametrize("num_tokens", [(0, 5), (5, 0), (0, 0), (1, 0, 0, 0)])
def test_a_rank_without_a_token_takes_part(num_tokens):
    World(num_tokens, 1, num_experts=4, k=2, num_redundant=0).check(num_plans=1)


def test_five_experts_on_two_ranks_and_two_on_four():
    World((3, 4), 1, num_experts=5, k=2, num_redundant=0).check()
    World((3, 4, 0, 1), 1, num_experts=2, k=1, num_redundant=0).check(num_plans=1)


def test_load_is_counted_where_the_rows_are_answered_and_the_hot_expert_gets_a_copy():
    world = World((40, 40), 1, num_experts=4, k=1, num_redundant=2, hot=60)
    results = world.check(num_plans=1)
    everybody = Counter(torch.cat(world.chosen).flatten().tolist())
    for _, [plan], spread in results:
        assert plan.load == [everybody[expert] for expert in range(4)]
        assert plan.old == place_evenly(4, 2, 2)
        assert [0 in slots for slots in plan.new] == [True, True]
        assert plan.after > 0.95 > plan.before
        assert spread.placement == plan.new
    rows = [spread.experts.load.sum().item() for _, _, spread in results]
    assert sum(rows) == 80, "counting begins anew with a plan"
    assert min(rows) / max(rows) > 0.9, "and the work really is spread as planned"


def test_tokens_take_turns_among_the_copies_of_an_expert():
    routes = Routes(((0, 1), (0, None)), num_experts=2, first=0, device=CPU)
    assert routes(torch.tensor([[0], [0], [1], [0]])).flatten().tolist() == [0, 2, 1, 2]
    assert Routes(((0, 1), (0, None)), 2, first=1, device=CPU)(torch.tensor([[0]])).item() == 2


def test_a_share_of_every_experts_features_makes_a_summand():
    x, weights, chosen = (
        torch.randn(5, HIDDEN),
        torch.rand(5, 2),
        torch.tensor([[0, 2], [2, 1], [1, 0], [0, 1], [2, 0]]),
    )
    whole = fill(Experts((0, 1, 2), HIDDEN, range(SIZE), make_build(Alone())))(x, weights, chosen)
    parts = [
        fill(Experts((0, 1, 2), HIDDEN, share, make_build(Alone())))(x, weights, chosen) for share in split(SIZE, 4)
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-4, atol=1e-5)
