"""What rows ask of the sampling kernel, drawn at random, and which tokens may come of it.

    Ask     one row's numbers, its edits {id: (count, bias)}, the ids it allows (None: all)
    answers(logits, ask)    the token that the specification gives, and those it gives a hair beside

A hair, because the kernel's weights differ from the specification's in the last bit or two: where u, top_p or min_p
lies that near to a border, the token on its other side is as right. Nearly always there is one answer only."""

import math
from dataclasses import dataclass, field
from itertools import product

import torch
from hypothesis import strategies as st

from minipaged.kernels.sample import edit_spec, sample_spec
from minipaged.kernels.sample_triton import Asked, Edits, sample
from minipaged.sampling import uniform
from tests.kernels.guard import DEVICE, guarded

HAIR = 1e-6  # eight roundings of float32


@dataclass(frozen=True)
class Ask:
    temperature: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    position: int = 0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    edits: dict[int, tuple[int, float]] = field(default_factory=dict)
    allowed: frozenset[int] | None = None


def answers(logits, ask):
    """The token, and what it may be if something lies within a hair of a border."""
    logits, u = edited(logits.cpu(), ask), uniform(ask.seed, ask.position)
    near = (1.0, 1 - HAIR, 1 + HAIR)
    floors, shares = ({min(1.0, value * a) for a in near} for value in (ask.min_p, ask.top_p))
    numbers = {u, max(0.0, u - HAIR), min(u + HAIR, 1 - HAIR)}
    shares = shares if ask.top_p < 1 else {1.0}
    return {
        sample_spec(logits, ask.temperature, min_p, ask.top_k, top_p, number)
        for min_p, top_p, number in product(floors, shares, numbers)
    }


def edited(logits, ask):
    V, ids = len(logits), list(ask.edits)
    allowed = torch.tensor([ask.allowed is None or v in ask.allowed for v in range(V)])
    counts = torch.tensor([count for count, _ in ask.edits.values()], dtype=torch.int32)
    bias = torch.tensor([bias for _, bias in ask.edits.values()], dtype=torch.float32)
    penalties = ask.repetition, ask.frequency, ask.presence
    return edit_spec(logits, torch.tensor(ids, dtype=torch.int64), counts, bias, penalties, allowed)


def run(logits, asks, block=4096, launcher=sample):
    """What the launcher says, over poisoned memory; logits that it changed would be noticed."""
    before = logits.clone()
    tokens = guarded(launcher, logits, to_asked(asks), to_edits(asks), to_mask(asks, logits.shape[1]), block)
    assert torch.equal(logits.nan_to_num(7), before.nan_to_num(7)), "the logits are not the kernel's to change"
    return tokens.tolist()


def to_asked(asks):
    floats = [floats_of(asks, name) for name in ("temperature", "min_p", "top_p")]
    integers = [
        torch.tensor([getattr(ask, name) for ask in asks], device=DEVICE) for name in ("top_k", "seed", "position")
    ]
    (temperature, min_p, top_p), (top_k, seeds, positions) = floats, [t.long() for t in integers]
    return Asked(temperature, min_p, top_k, top_p, seeds, positions)


def floats_of(asks, name):
    return torch.tensor([getattr(ask, name) for ask in asks], dtype=torch.float64, device=DEVICE)


def to_edits(asks):
    """None if nobody has any."""
    entries = [(i, *entry) for ask in asks for i, entry in ask.edits.items()]
    if not entries:
        return None
    starts = torch.tensor([sum(len(ask.edits) for ask in asks[:r]) for r in range(len(asks) + 1)], dtype=torch.int32)
    ids, counts, bias = ([entry[i] for entry in entries] for i in range(3))
    integers = [t.to(DEVICE) for t in (starts, torch.tensor(ids).int(), torch.tensor(counts).int())]
    penalties = [floats_of(asks, name) for name in ("repetition", "frequency", "presence")]
    return Edits(*integers, torch.tensor(bias, dtype=torch.float32, device=DEVICE), *penalties)


def to_mask(asks, V):
    """None if all allow everything."""
    if all(ask.allowed is None for ask in asks):
        return None
    bits = torch.zeros(len(asks), -(-V // 32), 32, dtype=torch.int64)
    for r, ask in enumerate(asks):
        bits[r].view(-1)[sorted(range(V) if ask.allowed is None else ask.allowed)] = 1
    words = (bits << torch.arange(32)).sum(-1)
    return torch.where(words < 2**31, words, words - 2**32).int().to(DEVICE)


def draw_logits(kind, V, seed):
    """spread: no two alike; steps: many are; flat: all are; and sharp: one is nearly certain."""
    generator = torch.Generator().manual_seed(seed)
    spread = 3 * torch.randn(V, generator=generator)
    steps = torch.randint(-12, 12, (V,), generator=generator) / 4
    sharp = spread + 30 * torch.nn.functional.one_hot(torch.tensor(seed % V), V)
    return {"spread": spread, "steps": steps, "flat": torch.zeros(V), "sharp": sharp}[kind]


@st.composite
def asks(draw, V):
    """One row's wishes; each of them is off as often as not."""
    values = {
        "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.0]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
        "top_k": st.sampled_from([0, 0, -1, 1, 2, 7, V - 1, V, V + 9]),
        "top_p": st.sampled_from([1.0, 1.0, 0.05, 0.5, 0.9, 0.999]),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "position": st.integers(0, 2**40),
    }
    if draw(st.booleans()):
        values["repetition"] = st.sampled_from([0.5, 1.0, 1.3, 2.0])
        values["frequency"] = values["presence"] = st.sampled_from([-1.5, 0.0, 0.7])
        entry = st.tuples(st.integers(-1, 3), st.sampled_from([0.0, 0.0, -100.0, 5.5, -math.inf]))
        values["edits"] = st.dictionaries(st.integers(0, V - 1), entry, max_size=min(V, 9))
    if draw(st.integers(0, 3)) == 0:
        values["allowed"] = st.frozensets(st.integers(0, V - 1), min_size=1)
    return Ask(**{name: draw(value) for name, value in values.items()})


@st.composite
def batches(draw, max_rows=3):
    """Logits [R, V], an Ask for each row, and a block, so that a row has up to four."""
    V = draw(st.sampled_from([1, 2, 5, 31, 32, 33, 64, 100, 203]))
    kinds = st.sampled_from(["spread", "steps", "flat", "sharp"])
    logits = [draw_logits(draw(kinds), V, draw(st.integers(0, 99))) for _ in range(draw(st.integers(1, max_rows)))]
    block = max(16, 1 << (V - 1).bit_length() >> draw(st.integers(0, 2)))
    return torch.stack(logits).to(DEVICE), [draw(asks(V)) for _ in logits], block
