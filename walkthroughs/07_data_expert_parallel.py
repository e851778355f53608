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
# # Level 07: what if one engine is not enough?
#
# One engine is one loop: one batch at a time, one pool of blocks. Here there are several engines with a router in
# front, and nothing else in common. We see who is sent where, read the messages between the processes, and then cut a
# model in which the engines do need each other: a mixture of experts.

# %%
# %matplotlib inline
import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"  # one core is one device here
sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from levels import NAMES, load
from levels.texts import PASSAGE, QUESTIONS
from minipaged import EngineConfig, SamplingParams
from minipaged.core.messages import Add, decode_command, encode, pack_params
from minipaged.core.router import LongestMatch, Replica, make_router
from minipaged.core.start import start_here
from minipaged.driver import Request, Run
from minipaged.kernels.fused_moe import sort_by_expert
from minipaged.loading import load_model
from minipaged.models import moe
from minipaged.models.make_moe import make_moe
from minipaged.parallel import balance
from minipaged.prompts import read_source
from minipaged.results import make_document
from minipaged.trace import Occupancy
from minipaged.viz import quote, waterfall
from minipaged.viz_processes import count_map, rank_load

level = load(7)
config = EngineConfig(max_model_len=256, num_blocks=128, max_num_seqs=4)
model = load_model(config)
tokenizer = model.vocabulary.tokenizer

# %% [markdown]
# ## The problem
#
# Three assistants with four visitors each, and one engine, on one device (here: one core, whatever else this machine
# may have), with memory for four people at once:

# %%
words = PASSAGE.split()
requests = [
    Request(
        read_source(
            "messages",
            [
                {"role": "system", "content": f"Assistant {i}. " + " ".join(words[50 * i :][:50])},
                {"role": "user", "content": QUESTIONS[visitor]},
            ],
            tokenizer,
        ),
        SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
    )
    for visitor in range(4)
    for i in range(3)
]
below = load(6).Engine(config, model)
one = make_document(Run(below, requests, numbered=True).go(), NAMES[5])
waterfall(one, below.trace.document(), "twelve people, one engine: from arrival to last word")

# %% [markdown]
# Most of the time most of them wait, and a second device would not change that: this loop would not use it.
#
# ## The idea

# %%
print(level.__doc__)

# %% [markdown]
# How much a replica has to do, and who is chosen:

# %%
quote(Replica)

# %%
quote(level.Router.choose)

# %% [markdown]
# Five requests come at once. What was sent counts at once, or all five would go to whoever looked idle a moment ago:

# %%
router = level.Router()
replicas = [Replica(0, Occupancy(2, 5, 90, 128)), Replica(1, Occupancy(0, 7, 80, 128))]  # waiting, running, free, all
for ticket in range(5):
    loads = [each.load for each in replicas]
    chosen = router.choose(replicas, [], None)
    chosen.unseen[ticket], chosen.num_sent = 1, chosen.num_sent + 1
    print(f"4 x waiting + running = {loads}: request {ticket} goes to replica {chosen.index}")

# %% [markdown]
# ## One request, message by message
#
# Between the front and a replica there are only messages, and in them only numbers and text. Here is one, as text, and
# as long as it is on the wire:

# %%
params = SamplingParams(temperature=0, max_tokens=4, seed=1)
add = Add(7, "A", tokenizer.encode("The capital of France is"), pack_params(params))
print(msgspec.json.encode(add).decode())
print(f"{len(encode(add))} bytes")

# %% [markdown]
# A replica is level 06's engine with an inbox. This one is in our own process, so that we can look on; through the
# same encoder and decoder as between processes goes the command in, and reports come out, after every step what is new:

# %%
wire, _ = start_here(config, model)
wire.send(0, decode_command(encode(add)))
while events := wire.receive(None):
    for replica, report in events:
        print(f"replica {replica}: {msgspec.json.encode(report.news).decode()}")
        print("           ", report.occupancy)

# %% [markdown]
# Our own copy of the sequence grows by what is new, with the engine's own code: text, stop strings and logprobs come
# out as if it had never been elsewhere.
#
# ## The experiment
#
# Two replicas, each a process with a device (a core) of its own:

# %%
engine = level.Engine(replace(config, data_parallel_size=2))
runs = {"one engine": (one, below.trace.steps)}
document = make_document(Run(engine, requests, numbered=True).go(), NAMES[6])
runs["two, by load"] = document, list(engine.trace.steps)
waterfall(document, engine.trace.document(), "twelve people, two engines")

# %% [markdown]
# By load alone they were sent here and there by turns, and so both replicas read what all three assistants begin with.
# A router that remembers whom it has sent what can do better:

# %%
quote(LongestMatch.choose)

# %% [markdown]
# The router is a part of its own, so another can take its place while the replicas go on:

# %%
engine.reset_prefix_cache()
engine.trace.steps.clear()
engine.replicas.router = make_router(replace(engine.config, data_parallel_router="prefix"))
document = make_document(Run(engine, requests, numbered=True).go(), NAMES[6])
runs["two, by prefix"] = document, list(engine.trace.steps)
engine.shutdown()

# %%
visitors = {name: [[0, 0] for _ in range(3)] for name in list(runs)[1:]}
for name, table in visitors.items():
    for step in runs[name][1]:
        for request_id in step.admitted:
            table[int(request_id) % 3][step.replica] += 1
count_map(visitors, "assistant", "replica")

# %%
for name, (document, _) in runs.items():
    metrics = document["metrics"]
    rate, found = metrics["output_tokens_per_s"], metrics["prefix_cache_hit_rate"]
    print(f"{name:<15} {rate:5.1f} tokens/s, found {found:.1%} of the prompts, the last done after", end=" ")
    print(f"{max(request['latency_s'] for request in document['requests']):.1f} s")

# %% [markdown]
# And everybody was told the same, wherever they were sent:

# %%
said = [[request["token_ids"] for request in document["requests"]] for document, _ in runs.values()]
[each == said[0] for each in said]

# %% [markdown]
# ## When replicas need each other: experts
#
# In a mixture of experts an MLP is many small ones, of which each token needs a few:

# %%
print(moe.__doc__)

# %%
quote(moe.MoE.__call__)

# %% [markdown]
# A small one, made on the spot. It has nothing to say, but eight experts in each layer, some of them asked more often
# than others. Whom do the letters of a sentence choose, and with which weights?

# %%
folder = make_moe(Path(tempfile.mkdtemp()) / "moe")
moe_config = EngineConfig(model=str(folder), max_model_len=512, num_blocks=128, enable_prefix_caching=False)
small = load_model(moe_config)
first = small.model.layers[0]
text = "To whom is it sent?"
ids = torch.tensor(small.vocabulary.tokenizer.encode(text))
with torch.inference_mode():
    weights, experts = first.mlp.route(first.mlp.router(first.post_norm(small.model.entrance.weight[ids])), 2, True)
for letter, w, e in list(zip(text, weights.tolist(), experts.tolist(), strict=True))[:6]:
    print(f"{letter!r} -> expert {e[0]} x {w[0]:.2f} + expert {e[1]} x {w[1]:.2f}")

# %% [markdown]
# All rows are sorted by expert, so that each expert's matrices are read once for all who want it. And if experts 0 to
# 3 are on one rank and 4 to 7 on another, this order is also who has to be sent what:

# %%
order, starts = sort_by_expert(experts.flatten(), 8)
counts = starts.diff().tolist()
print("rows for each expert:", counts)
print(f"rank 0 is sent {sum(counts[:4])} rows, rank 1 {sum(counts[4:])}")

# %% [markdown]
# Now really: two replicas, and the experts of every layer spread over both. A layer sends every row to its expert and
# the answer back. Then nobody can step alone: whoever has nothing to run takes part without a token, so that its
# experts can answer. One request, two replicas:

# %%
spread_config = replace(moe_config, data_parallel_size=2, enable_expert_parallel=True, num_redundant_experts=2)
engine = level.Engine(spread_config)
params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
alone = Request(small.vocabulary.tokenizer.encode("Only one of us has work."), params)
Run(engine, [alone], numbered=True).go()
print("steps with tokens, by replica:", [sum(step.replica == i for step in engine.trace.steps) for i in range(2)])
turns = [each.num_turns for each in engine.replicas.all]
print("turns that each took are equally many:", turns[0] == turns[1])

# %% [markdown]
# Several requests, and what each layer's experts were asked:

# %%
crowd = [
    Request(small.vocabulary.tokenizer.encode(f"{i}. {question}"), params) for i, question in enumerate(QUESTIONS[:8])
]
document = make_document(Run(engine, crowd, numbered=True).go(), NAMES[6])
engine.rebalance()
count_map({"rows": [each.load for each in engine.balances[0]]}, "layer", "expert")

# %% [markdown]
# In an exchange everybody waits for the busiest. So between two waves busy experts are copied into spare slots and all
# are packed anew:

# %%
quote(balance.make_plan)

# %%
rank_load(engine.balances[0])

# %% [markdown]
# *Balance* is the mean of the ranks' loads over the largest: at 1 nobody waits. The same crowd once more, now that the
# experts have moved, and counted again:

# %%
again = make_document(Run(engine, crowd, numbered=True).go(), NAMES[6])
engine.rebalance()
engine.shutdown()
for i, (before, after) in enumerate(zip(*engine.balances, strict=True)):
    print(f"layer {i}: balance {before.before:.2f}, planned {before.after:.2f}, then measured {after.before:.2f}")

# %% [markdown]
# Wherever the experts are, the words are those of one engine that has them all:

# %%
here = make_document(Run(load(6).Engine(moe_config, small), crowd, numbered=True).go(), NAMES[5])
tokens = [[request["token_ids"] for request in each["requests"]] for each in (here, document, again)]
[each == tokens[0] for each in tokens]

# %% [markdown]
# ## What it costs, and when it does not help
#
# Every replica has all weights once more (spread experts excepted) and a cache of its own. Who is sent to the wrong one
# finds nothing there. On devices that one engine keeps busy anyway, two have nothing to gain. And spread experts cost
# three messages a layer: DeepSeek-V3 (DeepSeek-AI 2024, section 3.4) spreads its experts over dozens of devices, keeps
# copies of busy ones as we did, and hides the messages behind other work, which we do not.
#
# ## Questions
#
# <details><summary>Why does a waiting request weigh more than a running one?</summary>
# It has all of its work ahead, its prompt first; a running one has only its next tokens.</details>
#
# <details><summary>Why does the router guess what a replica remembers, instead of asking?</summary>
# A question is answered between two steps, so everybody would wait for a step before they are even sent somewhere. A
# wrong guess costs one prompt read twice, and changes no word.</details>
#
# <details><summary>Why does <code>prefix</code> not always send to the longest match?</summary>
# If all visitors want the same assistant, one replica would have them all. A match is worth some waiting, and no
# more.</details>
#
# <details><summary>Replica 1 dies in the middle of a wave. What becomes of replica 0, with experts spread and
# without?</summary>
# Without, it goes on; those who were at replica 1 end with an error. With, it would wait for experts that do not answer
# any more, so both end.</details>
#
# **Next:** [08_serving](08_serving.ipynb).
