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
# # A tour: from text to token
#
# For whoever has never opened a language model. In ten minutes: what goes in, what comes out, what is kept in between,
# and why an *engine* is needed around it at all. Everything below is the real thing: a small model, its real weights,
# and the code that all levels of this project run.
#
# Run the cells one after the other (Shift + Enter). Nothing is defined in this notebook: what it calls is in the
# project, and you can read it.

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

import time

import torch

from benchmarks.floors import count_parameters
from levels import load
from minipaged import EngineConfig, SamplingParams
from minipaged.batch import Chunk, advance, pack, unpack
from minipaged.loading import load_model
from minipaged.sampling import distribution
from minipaged.sequence import Sequence
from minipaged.viz import quote

model = load_model(EngineConfig(max_model_len=256, num_blocks=32))
tokenizer = model.vocabulary.tokenizer

# %% [markdown]
# ## 1. Text is numbers
#
# A model reads no letters. A *tokenizer* cuts text into pieces that occur often, and each piece has a number, its
# *token id*. A blank belongs to the piece that follows it.

# %%
text = "The capital of France is"
token_ids = tokenizer.encode(text)
[(token_id, tokenizer.decode([token_id])) for token_id in token_ids]

# %% [markdown]
# Rarer words take more pieces, so a token is not a word:

# %%
[tokenizer.decode([token_id]) for token_id in tokenizer.encode("Hyperparameters and Luxembourg")]

# %% [markdown]
# ## 2. What the model is
#
# A list of layers. Each token becomes a row of numbers, and each layer changes all rows: once by letting every token
# look back at those before it (*attention*), once by itself. These are its sizes:

# %%
sizes = model.model_config
print(f"{sizes.num_layers} layers, rows of {sizes.hidden_size} numbers, a vocabulary of {sizes.vocab_size:,} tokens")
print(f"{sum(count_parameters(sizes)):,} weights in its products")

# %% [markdown]
# ## 3. What comes out: a score for every token there is
#
# We give it the five tokens. `Sequence`, `Chunk` and `pack` are the words in which all engines of this project talk:
# *run so many pending tokens of this sequence*. Out comes one row of scores (*logits*), for what may follow the last.

# %%
cache = model.new_kv_cache(num_blocks=32, block_size=16)
seq = Sequence("tour", list(token_ids), SamplingParams(temperature=0), max_len=256, block_table=[0, 1])
batch = pack([Chunk(seq, seq.num_pending)], block_size=16)
logits = model(batch, cache)
logits.shape

# %%
chances = logits[0].softmax(-1)
best = chances.topk(8)
[(tokenizer.decode([i]), f"{p:.1%}") for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]

# %% [markdown]
# That is all a language model does. It has no plan and no answer: it says how likely each next token is.
#
# ## 4. Saying a sentence: again and again
#
# Take the likeliest, put it behind the others, ask again. First the naive way: read the whole text anew every time.

# %%
said, times, total = list(token_ids), [], 0
for _ in range(8):
    fresh = Sequence("again", list(said), SamplingParams(temperature=0), max_len=256, block_table=[4, 5])
    start = time.perf_counter()
    row = model(pack([Chunk(fresh, fresh.num_pending)], block_size=16), cache)
    times.append(time.perf_counter() - start)
    total += fresh.num_pending
    said += model.sample(row, batch.rows)
print(tokenizer.decode(said))
print(f"{total} tokens were run through the model, to say {len(times)}")

# %% [markdown]
# Every layer computed the same *keys* and *values* for the first tokens again and again: they depend on nothing but the
# tokens up to there. So they are kept. That memory is the **KV cache**, and who gets how much of it is what the first
# levels of this project are about.

# %%
per_token = 2 * sizes.num_layers * sizes.num_kv_heads * sizes.head_dim
print(f"one token: {per_token:,} numbers, {per_token * 4 / 1024:.0f} KiB in float32")
print(f"a conversation of 2,048 tokens: {2048 * per_token * 4 / 2**20:.0f} MiB")

# %% [markdown]
# Now with the cache. `seq` has been read up to its fifth token (`num_computed_tokens`), and only what is *pending* is
# run: one token a step.

# %%
tokens = unpack(batch, model.sample(logits, batch.rows))
advance([Chunk(seq, seq.num_pending)], tokens)
print(f"tokens {len(seq.tokens)}, computed {seq.num_computed_tokens}, pending {seq.num_pending}")

# %%
total = 5
for _ in range(7):
    chunk = Chunk(seq, seq.num_pending)
    total += chunk.num_tokens
    batch = pack([chunk], block_size=16)
    advance([chunk], unpack(batch, model.sample(model(batch, cache), batch.rows)))
print(tokenizer.decode(seq.tokens))
print(f"{total} tokens were run through the model, to say 8; the same words: {seq.tokens == said}")

# %% [markdown]
# ## 5. Choosing the next token
#
# Always taking the likeliest is called *greedy*. Otherwise a token is drawn by chance, and `temperature` says how
# bold: below 1 the likeliest become likelier, above 1 all come closer together.

# %%
for temperature in (0.5, 1.0, 2.0):
    weights = distribution(logits.clone(), [SamplingParams(temperature=temperature)])[0]
    best = (weights / weights.sum()).topk(4)
    print(
        temperature, [(tokenizer.decode([i]), f"{p:.0%}") for p, i in zip(*map(torch.Tensor.tolist, best), strict=True)]
    )

# %% [markdown]
# ## 6. Why an engine?
#
# One person, one token at a time: the model reads all its weights for each single token. With several people's tokens
# in one forward, it reads them once for all. Here is the time of a forward over more and more tokens:

# %%
for num_tokens in (1, 2, 4, 8, 16):
    model.run_one(num_tokens)
    start = time.perf_counter()
    model.run_one(num_tokens)
    seconds = time.perf_counter() - start
    print(f"{num_tokens:>3} tokens: {seconds * 1e3:6.1f} ms, {seconds / num_tokens * 1e3:6.1f} ms a token")

# %% [markdown]
# A token costs less in company. So an engine gathers people; and then it has to decide, at every step, *which tokens
# run next*, and *where their keys and values live*. That is the whole project: two questions, and on each level one
# better answer. This is the first engine's heart:

# %%
quote(load(1).Engine.step)

# %% [markdown]
# ## Questions
#
# <details><summary>Why must the last token that was said be run, although its number is known?</summary>
# Known is which token it is. Its keys and values in each layer are not computed yet, nor the scores of what follows it.
# So a sequence always has at least one pending token.</details>
#
# <details><summary>Could the cache keep the scores as well?</summary>
# It could, but nobody would ask for them again: each is used once, to say the next token.</details>
#
# <details><summary>Why do the naive way and the cached way say the same?</summary>
# Keys and values of a token depend only on the tokens up to there, and these do not change any more. (But for
# rounding: sums in another order may differ in the last bit.)</details>
#
# **Next:** [01_basic](01_basic.ipynb), the first engine.
