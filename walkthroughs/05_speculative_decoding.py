# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Level 05: what probably comes next?
#
# A forward over one token reads all weights; so does one over four. Here somebody quick guesses the next few tokens,
# and the model checks the guesses in one forward. What it would have said anyway stands; the words never change.

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

import time

import torch

from benchmarks.floors import count_parameters
from levels import NAMES, load
from levels.texts import PASSAGE
from minipaged import EngineConfig, SamplingParams
from minipaged.batch import Row, advance, pack
from minipaged.driver import Request, Run
from minipaged.loading import load_model
from minipaged.prompts import read_source
from minipaged.report import Outcome, make_table
from minipaged.results import make_document
from minipaged.speculative import ngram, speculate, verify
from minipaged.viz import Point, quote, roofline, timeline

level = load(5)
config = EngineConfig(max_model_len=256, num_blocks=64, num_speculative_tokens=4)
model = load_model(config)
tokenizer = model.vocabulary.tokenizer

# %% [markdown]
# ## The problem
#
# One person, one token at a time. What does a forward cost on this machine, over more and more tokens?

# %%
weights = sum(count_parameters(model.model_config))
points = {}
for n in (1, 2, 4, 8, 32):
    model.run_one(n)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        model.run_one(n)
        times.append(time.perf_counter() - start)
    points[f"{n} tokens"] = Point(flop=2.0 * weights * n, bytes=4.0 * weights, seconds=min(times))
    print(f"{n:>4} tokens: {min(times) * 1e3:6.1f} ms, {min(times) / n * 1e3:5.1f} ms a token")

# %% [markdown]
# Below some number of tokens the time hardly depends on it: the machine waits for its memory. The roofline says the
# same in one picture. Its slope is how fast weights can be read, its top how fast the machine multiplies (both
# measured here, by one large product each):

# %%
matrix, vector, tile = torch.rand(8192, 4096), torch.rand(4096), torch.rand(1024, 1024)
reads, products = [], []
for _ in range(5):
    start = time.perf_counter()
    matrix @ vector
    reads.append(matrix.numel() * 4 / (time.perf_counter() - start))
    start = time.perf_counter()
    tile @ tile
    products.append(2 * 1024**3 / (time.perf_counter() - start))
roofline(points, flop_s=max(products), bytes_s=max(reads))

# %% [markdown]
# So a few tokens more in a forward are almost free. If only we knew which!
#
# ## The idea

# %%
print(level.__doc__)

# %% [markdown]
# Two lines of `step` are new, `speculate` and `verify`:

# %%
quote(level.Engine.step)

# %%
quote(verify.verify)

# %% [markdown]
# ## One request, step by step
#
# A text that repeats itself. The n-gram drafter looks for where the last words stood before:

# %%
quote(ngram.NgramIndex.follow)

# %%
engine = level.Engine(config, model)
text = "Red, green, blue, yellow. Red, green, blue, yellow. Red, green,"
engine.add_request(tokenizer.encode(text), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), "A")
plan = engine.scheduler.schedule()
guesses = speculate(plan, engine.drafter, engine.blocks)
print("guessed:", [tokenizer.decode([token_id]) for token_id in guesses[0].token_ids])

# %% [markdown]
# The prompt's last token and the guesses go through the model together. Each has a row of scores, which says what the
# model itself would say after it:

# %%
batch = pack(plan.chunks, engine.config.block_size)
logits = engine.model(batch, engine.kv_cache)
print("said:   ", [tokenizer.decode([token_id]) for token_id in model.sample(logits, batch.rows)])
kept = verify.verify(batch, logits, guesses, engine.model.sample)
print("kept:   ", [tokenizer.decode([token_id]) for token_id in kept[0]])

# %% [markdown]
# Up to the first word in which they differ the guesses stand; there the model's own word is taken. Now the step is
# closed, and on to the end:

# %%
advance(plan.chunks, kept)
engine.retire(plan.chunks, kept)
while engine.has_unfinished_requests():
    (output,) = engine.step()
print(output.outputs[0].text)
timeline(engine.trace.document(), "tokens run, and below: guesses that were right / guesses made")

# %% [markdown]
# What of a wrong guess's keys and values? They lie in slots behind the sequence's end, and the next step writes over
# them. Nobody ever reads them, so nothing has to be cleaned up.
#
# ## Chance
#
# Where words are drawn at random, a guess x that was drawn from q is kept with probability min(1, p(x) / q(x)). If it
# is not, the word is drawn from what p has beyond q:

# %%
quote(verify.choose)

# %% [markdown]
# Try it on three words, many times. However different q is, the words come out with the model's chances p:

# %%
num_draws = 20_000
p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.3])
guess = torch.multinomial(q, num_draws, replacement=True, generator=torch.Generator().manual_seed(0))
rows = [Row(SamplingParams(), seed, 5) for seed in range(num_draws)]
words = verify.choose(p.expand(num_draws, 3), q.expand(num_draws, 3), guess, rows)
shares = words.bincount(minlength=3) / num_draws
for name, chances in {"the model's chances": p, "the guesser's": q, "what came out": shares}.items():
    print(f"{name:<20}", [f"{float(chance):.3f}" for chance in chances])
print(f"kept: {(words == guess).float().mean():.3f} of all guesses; p and q overlap: {torch.minimum(p, q).sum():.3f}")

# %% [markdown]
# ## The experiment
#
# Something to copy, and something new, each without and with guesses.

# %%
paragraph = " ".join(PASSAGE.split()[:30])
wishes = {
    "copying": f"Repeat this text word by word:\n\n{paragraph}",
    "something new": "Write a short story about a lighthouse keeper.",
}
outcomes = []
for kind, wish in wishes.items():
    request = Request(
        read_source("messages", [{"role": "user", "content": wish}], tokenizer),
        SamplingParams(temperature=0, max_tokens=28, ignore_eos=True),
    )
    for number in (4, 5):
        one = EngineConfig(max_model_len=256, num_blocks=64, num_speculative_tokens=4 if number == 5 else 0)
        engine = load(number).Engine(one, model)
        run = Run(engine, [request], numbered=True).go()
        outcomes.append(
            Outcome(
                make_document(run, NAMES[number - 1]) | {"level": f"{kind}, level {number:02}"}, engine.trace.document()
            )
        )
make_table("one person", outcomes, ("output tokens/s", "tokens guessed", "tokens per forward"))

# %% [markdown]
# The words are the same with and without:

# %%
[
    outcomes[i].document["requests"][0]["token_ids"] == outcomes[i + 1].document["requests"][0]["token_ids"]
    for i in (0, 2)
]

# %%
timeline(outcomes[1].trace, "copying: several words a step")

# %%
timeline(outcomes[3].trace, "something new: few guesses, fewer of them right")

# %% [markdown]
# How many guesses should one make? `python -m benchmarks.speculation` measures it; its figures are in
# `benchmarks/results/cpu-draft-lengths.json`.
#
# ## What it costs, and when it does not help
#
# Each guess is a row more in the forward. Where nothing repeats, n-grams find little. A draft model that is as large as
# its target is always right and spends more forwards than it saves. And in a batch large enough to keep the arithmetic
# busy, on the flat part of the roof, no row is free.
#
# ## Questions
#
# <details><summary>Three guesses, all wrong. What was lost, what was gained?</summary>
# Three rows of a forward were lost. One word was gained, as without guesses: the model's own, after the known
# token.</details>
#
# <details><summary>Why at most one word more than was guessed?</summary>
# The row after the last right guess has said a word, too. Behind that nothing was run.</details>
#
# <details><summary>Why draw from max(p - q, 0), and not simply from p again?</summary>
# Words with q above p were guessed too often already, and kept as often as they should come. Drawing from p would give
# them more.</details>
#
# **Write it:** `python -m levels exercise 5`. **Next:**
# [06_tensor_pipeline_parallel](06_tensor_pipeline_parallel.ipynb).
