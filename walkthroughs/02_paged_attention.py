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
# # Level 02: who reserves what they never use?
#
# Level 01 gave everybody a row for the longest answer that could be. Here memory comes in blocks, when it is needed,
# from anywhere. We see the waste, follow one block table as it grows, watch somebody give way, and count again.

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

from levels import NAMES, load
from levels.texts import ask
from minipaged import EngineConfig, SamplingParams
from minipaged.batch import advance, pack, unpack
from minipaged.driver import Request, Run
from minipaged.loading import load_model
from minipaged.prompts import read_source
from minipaged.report import Outcome, make_table
from minipaged.results import make_document
from minipaged import blocks
from minipaged.viz import block_map, quote, waste_over_time

level = load(2)
config = EngineConfig(max_model_len=256, num_blocks=64, block_size=16)
model = load_model(config)
tokenizer = model.vocabulary.tokenizer

# %% [markdown]
# ## The problem
#
# Six people on level 01, in memory for four rows:

# %%
requests = [
    Request(
        read_source("messages", ask(i, 10 + 5 * i), tokenizer),
        SamplingParams(temperature=0, max_tokens=6 + 2 * i, ignore_eos=True),
    )
    for i in range(6)
]
below = load(1).Engine(config, model)
Run(below, requests, numbered=True).go()
waste_over_time({"01_basic": below.trace.steps})

# %% [markdown]
# The hatched part belongs to somebody and holds nothing, while two of the six wait for a row.
#
# ## The idea
#
# It is the one that operating systems had for the same trouble. The first page of `blocks.py`:

# %%
print(blocks.__doc__)

# %% [markdown]
# All there is to handing out memory:

# %%
quote(blocks.BlockManager.reserve)

# %%
quote(blocks.BlockManager.release)

# %% [markdown]
# and who may have it:

# %%
quote(level.Scheduler)

# %% [markdown]
# ## One request, step by step
#
# Small blocks, so that something happens often: 4 slots each, 12 of them.

# %%
small = EngineConfig(max_model_len=40, num_blocks=12, block_size=4)
engine = level.Engine(small, model)
engine.add_request(
    tokenizer.encode("The capital of France is"), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), "A"
)
engine.add_request(
    tokenizer.encode("One, two, three, four, five,"), SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), "B"
)
plan = engine.scheduler.schedule()
[
    (chunk.seq.request_id, f"runs {chunk.num_tokens} tokens", f"block_table {chunk.seq.block_table}")
    for chunk in plan.chunks
]

# %% [markdown]
# A prompt of five tokens got two blocks: that is where keys and values will go, token by token.
# `slot = block_table[p // 4] * 4 + p % 4`:

# %%
batch = pack(plan.chunks, engine.config.block_size)
print("positions   ", batch.positions)
print("slot_mapping", batch.slot_mapping)
print("block_tables", batch.block_tables)

# %% [markdown]
# The attention kernel follows the table: it reads A's keys from A's blocks, wherever they are. One forward, and the
# step is closed:

# %%
tokens = unpack(batch, model.sample(engine.model(batch, engine.kv_cache), batch.rows))
advance(plan.chunks, tokens)
engine.retire(plan.chunks, tokens)
block_map(engine.holders, 12, 4, columns=12)

# %% [markdown]
# Each step adds a token; every fourth step of a sequence needs a block. See the tables grow, and never by more than is
# needed:

# %%
for _ in range(6):
    engine.step()
    print([(seq.request_id, f"{seq.num_computed_tokens:>2} computed", seq.block_table) for seq in engine.holders])

# %%
block_map(engine.holders, 12, 4, columns=12)

# %% [markdown]
# Two tables, interleaved in memory, and nobody minds.
#
# ## When the pool runs dry
#
# The same two in six blocks. Together they will need more than there is. The newest gives its blocks back, keeps its
# *tokens*, waits, and computes them again: preemption by recompute.

# %%
tight = level.Engine(EngineConfig(max_model_len=24, num_blocks=6, block_size=4), model)
tight.add_request(
    tokenizer.encode("The capital of France is"), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), "A"
)
tight.add_request(
    tokenizer.encode("One, two, three, four, five,"), SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), "B"
)
said = {}
while tight.has_unfinished_requests():
    said |= {output.request_id: output.outputs[0].text for output in tight.step()}
    step = tight.trace.steps[-1]
    print(
        f"step {step.step:>2}  ran {step.num_scheduled_tokens}  gave way {step.preempted}  free {step.num_free_blocks}"
    )
said

# %% [markdown]
# Look at the step in which B comes back: it runs its prompt *and* what it had said, in one chunk, as if all of it were
# a prompt. No line of code asks which it is. And the words are the same as with memory enough:

# %%
ample = {}
while engine.has_unfinished_requests():
    ample |= {output.request_id: output.outputs[0].text for output in engine.step()}
{name: text == said[name] for name, text in ample.items()}

# %% [markdown]
# ## The experiment
#
# The six people again, on both levels, in the same memory.

# %%
outcomes, steps = [], {}
for number in (1, 2):
    engine = load(number).Engine(config, model)
    run = Run(engine, requests, numbered=True).go()
    outcomes.append(Outcome(make_document(run, NAMES[number - 1]), engine.trace.document()))
    steps[NAMES[number - 1]] = engine.trace.steps
make_table(
    "six people in the memory of four rows", outcomes, ("KV waste (reserved, never used)", "most requests in one step")
)

# %%
waste_over_time(steps)

# %% [markdown]
# All six are in the first batch, and what is reserved in vain is the empty part of last blocks. The paper calls that
# near-zero (Kwon et al. 2023, abstract), vLLM's announcement says less than 4 %. With texts as short as these it is a
# little more: half a block is lost per person, however short the text.
#
# ## Block size, predicted and measured
#
# Half a block is lost per sequence: so the waste should halve with the block size.

# %%
wastes = {}
for size in (32, 16, 8):
    engine = level.Engine(EngineConfig(max_model_len=256, num_blocks=1024 // size, block_size=size), model)
    wastes[size] = make_document(Run(engine, requests[:2], numbered=True).go(), NAMES[1])["metrics"]["kv"]["waste"]
{f"{size} slots a block": f"{waste:.1%} waste" for size, waste in wastes.items()}

# %% [markdown]
# ## What it costs, and when it does not help
#
# Every read goes through a table: on a GPU small blocks mean short runs of memory, so block sizes of 16 or more are
# usual. Where all requests have one known length there was no waste to save. And the batch still runs to its end: look
# at the right half of the picture above, where blocks come back one request at a time and nobody new may use them.
#
# ## Questions
#
# <details><summary>Why is a block's place in the pool of no importance to the model?</summary>
# Attention adds up over keys; each key carries its position (rotary embedding) within itself. Where it was read from
# changes nothing.</details>
#
# <details><summary>Why is a failed <code>reserve</code> to change nothing?</summary>
# Whoever asked for three blocks and got two would hold two that it cannot use, while somebody else waits for them. All
# or nothing means: whoever is told no has nothing to clean up.</details>
#
# <details><summary>Why does the <em>newest</em> give way?</summary>
# It has computed the least, so the least is computed twice; and the oldest always goes on, so somebody always comes to
# an end. If the oldest gave way, two could push each other out for ever.</details>
#
# **Write it:** `python -m levels exercise 2`. **Next:** [03_continuous_batching](03_continuous_batching.ipynb).
