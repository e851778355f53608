"""How often each answer of three words comes, held against how often it must: a chi-square test.

    Dice            a model of six words whose chances are lively, and known
    draws           thousands of answers of an engine, with some drafter
    check           for the first word, the first two, and all three: p-value above 1e-3

The same check has to fail for an engine that accepts every guess, and for one that replaces a wrong guess by a plain
draw: tests/mutants/verify.toml."""

from collections import Counter
from itertools import product

import torch

from levels import load
from minipaged.batch import Row
from minipaged.config import EngineConfig
from minipaged.sampling import distribution
from minipaged.sampling_params import SamplingParams
from minipaged.speculative.verify import choose

from .drafters import drafting_with
from .fake_model import FakeModel, extend
from .plain import processed

NUM_DRAWS = 20_000
PROMPT = [2, 3]
VOCAB_SIZE = 6


class Dice(FakeModel):
    """Logits between 0 and 2.5, by the last two tokens; another salt is another model."""

    def __init__(self, salt=0):
        super().__init__(vocab_size=VOCAB_SIZE)
        self.salt = salt

    def logits(self, tokens):
        before, newest = [0, *tokens][-2:]
        digest = extend(extend(extend(17, self.salt), before), newest)
        return [2.5 * (extend(digest, token) % 1000) / 1000 for token in range(VOCAB_SIZE)]


def draws(params, guesser=None, num_draws=NUM_DRAWS):
    """Answers of so many requests that differ in nothing but their seeds, as a Counter."""
    fields = {"num_blocks": 4000, "block_size": 2, "max_num_seqs": 1000, "max_num_batched_tokens": 10_000}
    config = EngineConfig(**fields, max_model_len=8, num_speculative_tokens=2 if guesser else 0)
    engine = load(5).Engine(config, Dice())
    if guesser:
        engine.drafter = guesser(engine, None)
    for _ in range(num_draws):
        engine.add_request(PROMPT, params)
    said = Counter()
    while engine.has_unfinished_requests():
        said.update(tuple(output.outputs[0].token_ids) for output in engine.step() if output.finished)
    return said


def law(params):
    """The chance of every answer of three words."""
    dice, chances = Dice(), {(): 1.0}
    for _ in range(3):
        rows = torch.tensor(
            [processed(dice.logits([*PROMPT, *said]), params, PROMPT, said, dice.eos_token_ids) for said in chances]
        )
        weights = distribution(rows, [params] * len(rows)).double()
        weights /= weights.sum(-1, keepdim=True)
        before = list(chances.items())
        chances = {
            (*said, word): chance * float(weights[i, word])
            for i, (said, chance) in enumerate(before)
            for word in range(VOCAB_SIZE)
        }
    return chances


def check_frequencies(said, params):
    chances = law(params)
    for n in (1, 2, 3):
        begun = [tuple(words) for words in product(range(VOCAB_SIZE), repeat=n)]
        counts, expected = Counter(), Counter()
        for words, count in said.items():
            counts[words[:n]] += count
        for words, chance in chances.items():
            expected[words[:n]] += chance
        found = p_value([counts[words] for words in begun], [expected[words] for words in begun])
        assert found > 1e-3, f"the first {n} words come too often or too rarely: p-value {found:.2g}"


def judge():
    """Everything above, with fewer draws: what a wrong way to verify must not survive."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.3])
    x = torch.multinomial(q, NUM_DRAWS, replacement=True, generator=torch.Generator().manual_seed(0))
    rows = [Row(SamplingParams(), seed, 5) for seed in range(NUM_DRAWS)]
    words = choose(p.expand(NUM_DRAWS, 3), q.expand(NUM_DRAWS, 3), x, rows)
    found = p_value(words.bincount(minlength=3).tolist(), p.tolist())
    assert found > 1e-3, f"three words come too often or too rarely: p-value {found:.2g}"
    wishes = {"frequency_penalty": 1.0, "logit_bias": {4: 1.5}}
    params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True, **wishes)
    check_frequencies(draws(params, drafting_with(lambda engine: Dice(salt=1)), 3000), params)


def p_value(counts, chances):
    """Of Pearson's chi-square; what cannot be must not have happened, and rare answers are counted together."""
    total = sum(counts)
    assert all(count == 0 for count, chance in zip(counts, chances, strict=True) if chance == 0), (
        "what cannot be was said"
    )
    rare = [(count, chance) for count, chance in zip(counts, chances, strict=True) if 0 < chance * total < 5]
    cells = [(count, chance) for count, chance in zip(counts, chances, strict=True) if chance * total >= 5]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(chance for _, chance in rare)))
    statistic = sum((count - total * chance) ** 2 / (total * chance) for count, chance in cells)
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))
