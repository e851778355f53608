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
# # Level 01: what is inference?
#
# The simplest engine that answers several people at once: a row of memory for each, as long as a request may ever
# become, and batches that run until their longest is done. We follow one request through it, then count what it wastes.
# (If words like *token* and *KV cache* are new to you: [00_tour](00_tour.ipynb).)

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

import time

from levels import NAMES, load
from levels.texts import ask
from minipaged import EngineConfig, SamplingParams
from minipaged.batch import Chunk, advance, pack, unpack
from minipaged.driver import Request, Run
from minipaged.loading import load_model
from minipaged.prompts import read_source
from minipaged.report import Outcome, make_table
from minipaged.results import make_document
from minipaged.viz import block_map, quote, timeline, waste_over_time, waterfall

level = load(1)
config = EngineConfig(max_model_len=256, num_blocks=64, block_size=16)
model = load_model(config)
tokenizer = model.vocabulary.tokenizer

# %% [markdown]
# ## The problem
#
# An answer grows token by token. Without a memory of what was read, each token would mean reading everything again.
# This is what a forward over n tokens costs on the machine that ran this notebook:

# %%
for n in (1, 32, 64, 128):
    model.run_one(n)
    start = time.perf_counter()
    model.run_one(n)
    print(f"{n:>4} tokens: {(time.perf_counter() - start) * 1e3:7.1f} ms")

# %% [markdown]
# So keys and values of every token that was read are kept. The question of this level: kept *where*?
#
# ## The idea
#
# The first page of the level's file:

# %%
print(level.__doc__)

# %% [markdown]
# A step is the same for everybody, whether it reads a prompt or writes a word: a *chunk* is "run so many pending tokens
# of this sequence".

# %%
quote(level.Engine.step)

# %% [markdown]
# ## One request, step by step
#
# Two people: one asks something short, one something longer. We do by hand what `step` does.

# %%
engine = level.Engine(config, model)
short = tokenizer.encode("The capital of France is")
longer = tokenizer.encode("Early computers gave every program one unbroken stretch of memory. The way out was")
engine.add_request(short, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), "short")
engine.add_request(longer, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), "longer")
print(f"{engine.num_rows} rows of {engine.config.max_model_len} slots; waiting: {len(engine.waiting)}")

# %% [markdown]
# Both take a row. Nobody has computed anything: everything is pending.

# %%
engine.trace.begin()
engine.seat()
[
    (seq.request_id, f"row {seq.block_table}", f"computed {seq.num_computed_tokens}", f"pending {seq.num_pending}")
    for seq in engine.batch
]

# %% [markdown]
# All pending tokens of both, laid end to end, are one flat batch. `slot_mapping` says where each token's keys and
# values go: the second one's begin where its row begins. `logits_indices` are the tokens after which something is to be
# said: the last of each.

# %%
chunks = [Chunk(seq, seq.num_pending) for seq in engine.batch]
batch = pack(chunks, engine.config.max_model_len)
print("token_ids      ", batch.token_ids)
print("slot_mapping   ", batch.slot_mapping)
print("query_start_loc", batch.query_start_loc)
print("logits_indices ", batch.logits_indices)

# %% [markdown]
# One forward; two rows of scores; two words.

# %%
logits = engine.model(batch, engine.kv_cache)
tokens = unpack(batch, model.sample(logits, batch.rows))
advance(chunks, tokens)
print([tokenizer.decode(said) for said in tokens])
[(seq.request_id, f"computed {seq.num_computed_tokens}", f"pending {seq.num_pending}") for seq in engine.batch]

# %% [markdown]
# What was just said is pending now, and so it goes on. This is the memory; a box is a row, blue or orange is what holds
# keys and values:

# %%
outputs = engine.close(chunks, tokens)
block_map(engine.holders, engine.num_rows, engine.config.max_model_len, columns=1)

# %% [markdown]
# Three steps later the short one has all its words. Its row is still taken:

# %%
for _ in range(3):
    outputs = engine.step()
[(seq.request_id, f"row {seq.block_table}", seq.finish_reason) for seq in engine.batch]

# %%
while engine.has_unfinished_requests():
    engine.step()
timeline(engine.trace.document())

# %% [markdown]
# ## The experiment
#
# Eight people, texts and answers of different lengths, memory for four rows.

# %%
lengths = [14, 4, 8, 18, 5, 11, 3, 9]
requests = [
    Request(
        read_source("messages", ask(i, 10 + 7 * i), tokenizer),
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True),
    )
    for i, n in enumerate(lengths)
]
engine = level.Engine(config, model)
run = Run(engine, requests, numbered=True).go()
outcome = Outcome(make_document(run, NAMES[0]), engine.trace.document())
make_table("eight people, four rows", [outcome])

# %%
waste_over_time({"01_basic": engine.trace.steps})

# %% [markdown]
# Two kinds of waste in one picture. Above the used slots lies what is reserved for tokens that never come. And within a
# batch the used part stops growing: whoever is done sits in its row until the longest is done.

# %%
waterfall(outcome.document, outcome.trace)

# %%
timeline(outcome.trace)

# %% [markdown]
# The PagedAttention paper (Kwon et al. 2023, figure 2) found that between 20.4 % and 38.2 % of the KV memory of earlier
# engines held keys and values of tokens. The table above has this engine's share: 100 % minus its waste.
#
# ## What it costs, and when it is enough
#
# For one person with a known, fixed length nothing is wasted, and nothing is simpler. It stops being enough as soon as
# lengths differ, since then both the slots behind an answer and the rows of those who are done stay empty.
#
# ## Questions
#
# <details><summary>The engine has memory for four rows. Would halving <code>max_model_len</code> help?</summary>
# There would be eight rows, and half of the waste behind each answer would be gone. The price: nobody may ever have a
# longer conversation than that.</details>
#
# <details><summary>Why does the first step take so much longer than the others?</summary>
# It runs all prompts, some hundred tokens; the others run one token for each request.</details>
#
# <details><summary>Why is it not enough to give a row back as soon as its sequence has ended?</summary>
# The row would be free, but a batch admits nobody while it runs. Level 03 changes that; level 02 first changes what a
# place in memory is.</details>
#
# **Write it:** `python -m levels exercise 1`. **Next:** [02_paged_attention](02_paged_attention.ipynb).
