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
# # Level 04: who computed this before?
#
# Many people talk to one assistant, and every prompt begins with the same instructions. Level 03 reads them for each.
# Here a block has a name, made of what it holds and all that stands before it, and whoever begins with the same words
# borrows it.

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

from levels import NAMES, load
from levels.texts import PASSAGE, QUESTIONS
from minipaged import EngineConfig, SamplingParams, prefix
from minipaged.batch import advance, pack, unpack
from minipaged.driver import Request, Run
from minipaged.loading import load_model
from minipaged.prefix import PrefixBlockManager, block_name
from minipaged.prompts import read_source
from minipaged.report import Outcome, make_table
from minipaged.results import make_document
from minipaged.scheduler import Scheduler
from minipaged.viz import block_map, quote, timeline

level = load(4)
config = EngineConfig(max_model_len=256, num_blocks=128, block_size=16, max_num_batched_tokens=128)
model = load_model(config)
tokenizer = model.vocabulary.tokenizer

# %% [markdown]
# ## The problem
#
# Six visitors, one system prompt, on level 03:

# %%
system = "You answer questions about this text. " + " ".join(PASSAGE.split()[:40])
requests = [
    Request(
        read_source(
            "messages", [{"role": "system", "content": system}, {"role": "user", "content": question}], tokenizer
        ),
        SamplingParams(temperature=0, max_tokens=4, ignore_eos=True),
    )
    for question in QUESTIONS[:6]
]
below = load(3).Engine(config, model)
run = Run(below, requests, numbered=True).go()
prompts = [request.prompt_token_ids for request in requests]
equal = [len(set(column)) == 1 for column in zip(*prompts, strict=False)]
print(f"prompts of {[len(prompt) for prompt in prompts]} tokens; the first {equal.index(False)} are the same in all")
print(f"{sum(sum(step.num_scheduled_tokens.values()) for step in below.trace.steps):,} tokens ran through the model")

# %% [markdown]
# ## The idea

# %%
print(prefix.__doc__)

# %% [markdown]
# A name is a hash over the parent's name and the block's own tokens. The same words behind another beginning have
# another name, and so they should: their keys and values are others.

# %%
first, second = block_name(prefix.ROOT, [1, 2, 3, 4]), block_name(prefix.ROOT, [9, 2, 3, 4])
print(block_name(first, [5, 6, 7, 8]).hex()[:16], "behind one beginning")
print(block_name(second, [5, 6, 7, 8]).hex()[:16], "the same tokens behind another")
print(block_name(first, [5, 6, 7, 8]).hex()[:16], "the first again")

# %% [markdown]
# Two verbs are new. Whoever comes in *adopts*: borrows the blocks whose names are known, as many as there are from the
# front without a gap, and reserves the rest.

# %%
quote(PrefixBlockManager.find)

# %%
quote(PrefixBlockManager.adopt)

# %% [markdown]
# `num_revived` is the trap in it. A known block that nobody holds lies in the free queue. Once it is borrowed it is not
# free any more, so it must not be counted among those that the rest may take.
#
# And whoever runs tokens *publishes* the blocks that they fill:

# %%
quote(PrefixBlockManager.publish)

# %% [markdown]
# Most of the time a name is new (`known == block`). Where it is taken, two have filled equal blocks, and one is enough:
# `seq` changes over to the block that was named first and gives its own back. There is one moment in which it may not:
# while its own tokens are not computed yet. Then both write in this very step, and it changes over in the next.
#
# The scheduler uses the two where level 03 only reserved:

# %%
quote(Scheduler)

# %% [markdown]
# Three words in it are for later: `divide` and `ready` matter when several batches are in flight (level 06; here
# everybody is ready, and a batch may have all seats), `is_sound` when a step was broken off by an error, after which
# what was published may never have been computed.

# %% [markdown]
# ## One request, step by step
#
# Blocks of 4 slots. A asks something; while A is still here, B begins with the same words.

# %%
small = EngineConfig(max_model_len=40, num_blocks=16, block_size=4)
engine = level.Engine(small, model)
words = "The capital of France is Paris. The capital of"
engine.add_request(
    tokenizer.encode(words + " Italy is"), SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), "A"
)
engine.step()
print(f"A: {engine.holders[0].num_computed_tokens} tokens computed, block_table", engine.holders[0].block_table)
print("named  ", {name.hex()[:8]: block for name, block in engine.blocks.block_of.items()})

# %% [markdown]
# The twelve tokens of its prompt fill three blocks, and all three have names by now; a block that is not full has none.
# Enter B:

# %%
engine.add_request(
    tokenizer.encode(words + " Spain is"), SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), "B"
)
plan = engine.scheduler.schedule()
[
    (chunk.seq.request_id, f"found {chunk.seq.num_cached_tokens}", f"runs {chunk.num_tokens}", chunk.seq.block_table)
    for chunk in plan.chunks
]

# %% [markdown]
# B's table begins with A's blocks. It has only to run what is its own. In the picture, hatched blocks are held by two:

# %%
batch = pack(plan.chunks, engine.config.block_size)
tokens = unpack(batch, model.sample(engine.model(batch, engine.kv_cache), batch.rows))
advance(plan.chunks, tokens)
outputs = engine.retire(plan.chunks, tokens)
print("held by so many:", engine.blocks.pool.ref_counts)
block_map(engine.holders, 16, 4)

# %% [markdown]
# Everybody leaves. All blocks are free, and they keep their names: *free memory is the cache*. The queue has the order
# in which they would be handed out for something new, tails before heads:

# %%
while engine.has_unfinished_requests():
    engine.step()
print("held by somebody:", sum(engine.blocks.pool.ref_counts), "  free:", engine.blocks.num_free_blocks)
print("free queue:", list(engine.blocks.pool.free_block_queue))
print("with a name:", sorted(engine.blocks.block_of.values()))

# %%
engine.add_request(
    tokenizer.encode(words + " Italy is"), SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), "again"
)
engine.step()
engine.trace.steps[-1].cached_tokens

# %% [markdown]
# The same question again, after everybody had left: found, but for its last block. All three blocks are known, and yet
# one token has to run, because somebody has to say what comes next. Only whole blocks are borrowed, so here it is the
# last four that run.
#
# ## The experiment

# %%
outcomes, steps = [], {}
for number in (3, 4):
    engine = load(number).Engine(config, model)
    run = Run(engine, requests, numbered=True).go()
    outcomes.append(Outcome(make_document(run, NAMES[number - 1]), engine.trace.document()))
    steps[NAMES[number - 1]] = engine.trace.steps
make_table(
    "six visitors, one system prompt",
    outcomes,
    ("tokens run through the model", "prompt tokens found", "first token after (mean)"),
)

# %%
timeline(outcomes[0].trace, "level 03: everybody reads everything, as far as the budget of a step allows")

# %%
timeline(outcomes[1].trace, "level 04: the first reads the system prompt, the others borrow it in the same step")

# %% [markdown]
# Even though all came at once. A block is published when its last token is *scheduled*: within a layer all keys and
# values of a step are written before any are read, so the others may borrow what is just being computed. The words are
# the same:

# %%
[a["token_ids"] == b["token_ids"] for a, b in zip(*(outcome.document["requests"] for outcome in outcomes), strict=True)]

# %% [markdown]
# ## What it costs, and when it does not help
#
# A hash for each full block, which is little. It helps nobody whose beginning is their own: put a visitor's number in
# front of the system prompt, and every name changes. Here is the same crowd, each with a number first:

# %%
numbered = [
    Request(
        read_source(
            "messages",
            [{"role": "system", "content": f"Visitor {i}. {system}"}, {"role": "user", "content": QUESTIONS[i]}],
            tokenizer,
        ),
        SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
    )
    for i in range(4)
]
engine = level.Engine(config, model)
metrics = make_document(Run(engine, numbered, numbered=True).go(), NAMES[3])["metrics"]
f"found {metrics['prefix_cache_hit_tokens']} of {metrics['prompt_tokens']} prompt tokens"

# %% [markdown]
# SGLang's RadixAttention (Zheng et al. 2024) finds common beginnings with a tree and to the token; names of whole
# blocks find them to the block, with a dictionary.
#
# ## Questions
#
# <details><summary>Why must a name include everything before the block?</summary>
# A key in a deeper layer depends on all tokens before it. Equal tokens behind another beginning have other
# keys.</details>
#
# <details><summary>Why is the tail of a table handed out before its head?</summary>
# A known tail without its head can never be found: the search begins at the front and stops at the first gap.</details>
#
# <details><summary>Two who trust each other little share one engine. What could one learn about the other?</summary>
# How quickly the first token comes tells whether somebody has asked the same before. <code>cache_salt</code> gives each
# their own names.</details>
#
# **Write it:** `python -m levels exercise 4`. **Next:** [05_speculative_decoding](05_speculative_decoding.ipynb).
