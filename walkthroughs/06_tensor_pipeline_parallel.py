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
# # Level 06: what if the model outgrows one device?
#
# Until here one process had all weights. Here nobody has: every rank is a process with a share of them, and together
# they say what one would have said. We cut a layer by hand, see who holds what, count every byte that is sent, and
# watch a pipeline wait, and then wait less.

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

import msgspec
import torch

from levels import NAMES, load
from levels.texts import ask
from minipaged import EngineConfig, SamplingParams
from minipaged.batch import pack
from minipaged.driver import Request, Run
from minipaged.loading import load_model
from minipaged.parallel import layers, messages, portion
from minipaged.parallel.place import Layout
from minipaged.prompts import read_source
from minipaged.report import Outcome, make_table
from minipaged.results import make_document
from minipaged.viz import quote, timeline
from minipaged.viz_processes import holdings, stages

level, demo = load(6), load(6, "demo")
config = EngineConfig(max_model_len=256, num_blocks=128)

# %% [markdown]
# ## The problem
#
# Say that a device has so much memory and no more:

# %%
too_small = EngineConfig(max_model_len=256, num_blocks=128, rank_memory_gb=0.45)
try:
    level.Engine(too_small)
except ValueError as error:
    print(error)

# %% [markdown]
# The weights alone are more than it can hold. Smaller numbers for the weights would help for a while. A model of ten
# times the size would still not fit.
#
# ## The idea
#
# A layer is a product, and products can be cut. Two ways, which combine:

# %%
print(layers.__doc__)

# %% [markdown]
# Let us not believe that, but do it, with the real weights of this model's first layer. Three ranks, each with a third
# of the MLP's features, and nobody talks to anybody before the sum:

# %%
model = load_model(config)
mlp = model.model.layers[0].mlp
gate, up = mlp.gate_up_proj.linear.weight.to_dense().chunk(2)  # [F, M] each; dense: not in the CPU's own order
down = mlp.down_proj.linear.weight.to_dense()  # [M, F]
x = torch.randn(5, 576, generator=torch.Generator().manual_seed(0))  # five tokens

summands = []
for share in portion.split(len(gate), 3):
    mine = slice(share.start, share.stop)
    inside = torch.nn.functional.silu(x @ gate[mine].T) * (x @ up[mine].T)
    summands.append(inside @ down[:, mine].T)
    print(f"features {share.start:>4} to {share.stop - 1:>4}: a summand of {list(summands[-1].shape)}")
whole = mlp(x)
print("their sum is what the whole MLP says:", torch.allclose(sum(summands), whole, rtol=1e-3, atol=1e-3))

# %% [markdown]
# The other way is to give each rank some of the *layers*, whole. Who has what is arithmetic on a few integers, known
# before any process is there:

# %%
quote(portion.split_model)

# %%
splits = {
    "TP 3": Layout(tensor_size=3),
    "PP 2": Layout(num_stages=2),
    "TP 3 x PP 2": Layout(tensor_size=3, num_stages=2),
}
for name, layout in splits.items():
    for rank in range(layout.num_ranks):
        share = layout.portion(model.model_config, rank)
        print(f"{name:<12} rank {rank}: layers {share.layers}, heads {share.heads}, words {share.vocabulary}")

# %%
holdings(
    {
        name: [layout.portion(model.model_config, rank) for rank in range(layout.num_ranks)]
        for name, layout in splits.items()
    }
)

# %% [markdown]
# Two ranks side by side would not do, since this model has three kv heads. Whoever asks for it is told what would:

# %%
try:
    Layout(tensor_size=2).check(model.model_config)
except ValueError as error:
    print(error)

# %% [markdown]
# ## What the engine notices
#
# Of tensor parallelism, nothing. Of a pipeline, one thing: while a batch is in the second stage, the first has nothing
# to do, so a second batch may be launched before the first has landed. That is the whole of the new loop:

# %%
quote(level.Engine.step)

# %%
quote(level.Engine.land)

# %% [markdown]
# ## Two requests, step by step
#
# Two stages: two processes start now, each loads its half, and the memory that was too small is enough.

# %%
engine = level.Engine(
    EngineConfig(max_model_len=256, num_blocks=128, rank_memory_gb=0.45, pipeline_parallel_size=2, max_num_seqs=2)
)
tokenizer = engine.desk.vocabulary.tokenizer
for name, text in {"A": "The capital of France is", "B": "One, two, three,"}.items():
    engine.add_request(tokenizer.encode(text), SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), name)
print("batches that may be under way:", engine.scheduler.max_concurrent_batches)

# %% [markdown]
# The first step launches a batch, and has nothing to say yet. The seats of a step are divided among the batches: A is
# in this one, B will be in the next.

# %%
print("said:", engine.step())
for flight in engine.in_flight:
    print("in flight:", [(chunk.seq.request_id, chunk.num_tokens) for chunk in flight.chunks])

# %% [markdown]
# What crossed to the ranks? Integers. The first stage gets the bare batch, the last one, which draws the token, also
# what is wished of each row. This is what the first one got, as text:

# %%
batch = pack(engine.in_flight[0].chunks, engine.config.block_size)
first, last = messages.bare(batch), messages.full(batch, [])
print(msgspec.json.encode(first).decode())
print(f"{len(messages.ENCODER.encode(first))} bytes to rank 0, {len(messages.ENCODER.encode(last))} to rank 1")

# %% [markdown]
# From rank 0 to rank 1 travels what the tokens have become after half of the layers: M numbers for each. Now on to the
# end. In every step one batch lands while the other is on its way:

# %%
said = {}
while engine.has_unfinished_requests():
    outputs = engine.step()
    said |= {output.request_id: output.outputs[0].text for output in outputs}
    print([output.request_id for output in outputs], "heard of;", len(engine.in_flight), "in flight")
said

# %%
timeline(engine.trace.document(), "a batch for each: A and B take turns, and both stages have work")

# %% [markdown]
# ## What is held, and what is sent
#
# Every rank counts its bytes. The formula: a token is M numbers, in float32 4 M bytes. A stage hands that on once. To
# add up a sum over n ranks around a ring, each sends 2 (n - 1) / n of it, twice a layer (and once for the embedding).

# %%
requests = [
    Request(
        read_source("messages", ask(i, 15), tokenizer), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    )
    for i in range(4)
]
num_tokens, reports = demo.watch(engine, requests, 1)
demo.holdings(engine, num_tokens, reports)

# %% [markdown]
# And three slices of every layer, in three processes:

# %%
engine.shutdown()
sliced = level.Engine(EngineConfig(max_model_len=256, num_blocks=128, rank_memory_gb=0.45, tensor_parallel_size=3))
num_tokens, reports = demo.watch(sliced, requests, 1)
demo.holdings(sliced, num_tokens, reports)

# %% [markdown]
# Count and formula agree. And compare the two tables: slices send far more, and each time somebody waits for it. So
# slices belong where the wires are short, within one machine, and stages may be far apart.
#
# ## The experiment
#
# The same four people, on level 05 in one process, in three slices, and in two stages:

# %%
outcomes = []
for name, engine in {"05, one process": load(5).Engine(config, model), "06, TP 3": sliced}.items():
    engine.reset_prefix_cache()
    engine.trace.steps.clear()
    run = Run(engine, requests, numbered=True).go()
    outcomes.append(Outcome(make_document(run, NAMES[5]) | {"level": name}, engine.trace.document()))
sliced.shutdown()
staged = level.Engine(EngineConfig(max_model_len=256, num_blocks=128, rank_memory_gb=0.45, pipeline_parallel_size=2))
run = Run(staged, requests, numbered=True).go()
outcomes.append(Outcome(make_document(run, NAMES[5]) | {"level": "06, PP 2"}, staged.trace.document()))
make_table("four people", outcomes, ("output tokens/s", "most requests in one step"))

# %% [markdown]
# The words are the same:

# %%
words = [[request["token_ids"] for request in outcome.document["requests"]] for outcome in outcomes]
[each == words[0] for each in words]

# %% [markdown]
# ## The bubble
#
# With one batch in flight only one stage can work at a time. With as many batches as stages nobody has to wait, if all
# stages take equally long. Each rank notes when it began and ended a batch; here they are, for 1, 2 and 4 batches in
# flight:

# %%
runs = {}
for num_batches in (1, 2, 4):
    _, reports = demo.watch(staged, requests, num_batches)
    runs[f"{num_batches} in flight"] = [[(span.start_s, span.end_s) for span in report.spans] for report in reports]
stages(runs)

# %% [markdown]
# The gaps in the first picture are the *bubble*. For m batches that pass through p stages and nothing behind them it is
# (p - 1) / (m + p - 1) of the time (Huang et al. 2019, GPipe). An engine never ends its stream of batches, so what is
# left of it is only the time between landing one batch and launching the next. With more batches in flight than stages
# that time is hidden too; the batches have become smaller for it.

# %%
staged.shutdown()

# %% [markdown]
# ## What it costs, and when it does not help
#
# Nothing here became faster than one process with all cores: the ranks share them. What was bought is room. On devices
# of their own, slices make every step faster, as long as the sums take less time than they save; stages make no step
# faster, they let more of them be under way. Megatron-LM (Shoeybi et al. 2019, section 3) cuts layers as we did, with
# two sums in each; its figure 3 is the first drawing above.
#
# ## Questions
#
# <details><summary>Why is there no sum between the two products of an MLP?</summary>
# The first is cut by its outputs: each rank has all of the numbers of its own features. The gate works feature by
# feature. So each rank has exactly the inputs that its part of the second product needs.</details>
#
# <details><summary>Why does one rank draw the token, and not each for itself?</summary>
# Sums in another order round otherwise. Two ranks with two opinions would write two histories, and the next sum would
# add up halves of different texts. Drawn once and sent to all, there is one.</details>
#
# <details><summary>Why may a sequence not be in two batches in flight?</summary>
# Its next token is what the first batch is about to find out.</details>
#
# <details><summary>Two stages of 4 and 26 layers: how busy is each?</summary>
# The first waits for the second most of the time: the pipeline turns as fast as its slowest stage. Try
# <code>--pipeline-layers 4,26</code>.</details>
#
# **Next:** [07_data_expert_parallel](07_data_expert_parallel.ipynb).
