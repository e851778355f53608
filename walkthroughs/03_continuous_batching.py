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
# # Level 03: who waits for whom?
#
# A batch that runs to its end makes everybody wait for its longest. Here every step decides anew who runs. We watch the
# waiting, then four requests share a budget, then the whole is measured.

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

from levels import NAMES, load
from levels.texts import PASSAGE, ask
from minipaged import EngineConfig, SamplingParams
from minipaged.batch import advance, pack, unpack
from minipaged.driver import Request, Run
from minipaged.loading import load_model
from minipaged.prompts import read_source
from minipaged.report import Outcome, make_table
from minipaged.results import make_document
from minipaged.base import SchedulerBase
from minipaged.viz import quote, timeline, waterfall

level = load(3)
config = EngineConfig(max_model_len=256, num_blocks=64, block_size=16, max_num_seqs=4)
model = load_model(config)
tokenizer = model.vocabulary.tokenizer

# %% [markdown]
# ## The problem
#
# Eight people, four seats; the first wants a long answer. Level 02:

# %%
lengths = [24, 5, 3, 7, 4, 5, 3, 4]
requests = [
    Request(
        read_source("messages", ask(i, 8 + 3 * i), tokenizer),
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True),
    )
    for i, n in enumerate(lengths)
]
below = load(2).Engine(config, model)
run = Run(below, requests, numbered=True).go()
timeline(below.trace.document(), "level 02: four of them wait for request 0, three seats are empty most of the time")

# %% [markdown]
# ## The idea

# %%
print(level.__doc__)

# %% [markdown]
# The whole policy is this; compare it with `python -m levels diff 2 3`:

# %%
quote(level.Scheduler.schedule)

# %% [markdown]
# It is written with verbs. This one says what happens when there is no room:

# %%
quote(SchedulerBase.make_room)

# %%
quote(SchedulerBase.preempt)

# %% [markdown]
# ## One request, step by step
#
# The budget is 16 tokens a step. A is writing when B arrives with a long prompt, and C behind it.

# %%
engine = level.Engine(EngineConfig(max_model_len=256, num_blocks=64, block_size=16, max_num_batched_tokens=16), model)
texts = {
    "A": "The capital of France is",
    "B": " ".join(PASSAGE.split()[:22]),
    "C": "One, two, three,",
}
engine.add_request(tokenizer.encode(texts["A"]), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), "A")
engine.step()
for name in "BC":
    engine.add_request(
        tokenizer.encode(texts[name]), SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), name
    )
plan = engine.scheduler.schedule()
print([(chunk.seq.request_id, chunk.num_tokens, f"of {chunk.seq.num_pending} pending") for chunk in plan.chunks])
print(f"budget left: {plan.budget}; waiting: {[seq.request_id for seq in engine.scheduler.waiting]}")

# %% [markdown]
# A runs its one token first, B gets what is left: a *chunk* of its prompt. C is behind B and gets nothing, although
# it is short: nobody overtakes the head of the queue. B's blocks are those of its whole prompt, so that it cannot get
# stuck in the middle:

# %%
[(seq.request_id, f"{len(seq.tokens)} tokens", seq.block_table) for seq in engine.holders]

# %% [markdown]
# Only a chunk that reaches its sequence's end has a row to draw from. B says nothing yet:

# %%
batch = pack(plan.chunks, engine.config.block_size)
logits = engine.model(batch, engine.kv_cache)
tokens = unpack(batch, model.sample(logits, batch.rows))
print(f"{len(batch.token_ids)} tokens ran, {len(batch.rows)} row to draw from; said: {tokens}")
advance(plan.chunks, tokens)
outputs = engine.retire(plan.chunks, tokens)

# %%
while engine.has_unfinished_requests():
    engine.step()
timeline(engine.trace.document())

# %% [markdown]
# Read the picture from left to right: A never waits longer than a step of 16 tokens takes, though a long prompt came
# in. C starts in the very step in which B's prompt leaves something of the budget. Whoever ends makes room at once.
#
# ## The experiment

# %%
outcomes, steps = [], {}
for number in (2, 3):
    engine = load(number).Engine(config, model)
    run = Run(engine, requests, numbered=True).go()
    outcomes.append(Outcome(make_document(run, NAMES[number - 1]), engine.trace.document()))
    steps[NAMES[number - 1]] = engine.trace.steps
make_table(
    "eight people, four seats, the first wants a long answer",
    outcomes,
    ("short ones done after (mean)", "output tokens/s"),
)

# %%
waterfall(outcomes[0].document, outcomes[0].trace, "level 02")

# %%
waterfall(outcomes[1].document, outcomes[1].trace, "level 03")

# %% [markdown]
# Grey is waiting. At level 03 those in the second half start as soon as a short one ends. The words are the same:

# %%
[a["token_ids"] == b["token_ids"] for a, b in zip(*(outcome.document["requests"] for outcome in outcomes), strict=True)]

# %% [markdown]
# ## The price of a chunk
#
# A smaller budget makes steps shorter and more of them: who writes waits less for those who read, who reads waits more.

# %%
prices = {}
for budget in (16, 1024):
    engine = level.Engine(
        EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=budget), model
    )
    metrics = make_document(Run(engine, requests[:4], numbered=True).go(), NAMES[2])["metrics"]
    prices[budget] = metrics["steps"], metrics["ttft_s"]["mean"], metrics["itl_s"]["p99"], metrics["wall_s"]
for budget, (num_steps, ttft, gap, wall) in prices.items():
    print(f"budget {budget:>4}: {num_steps:>3} steps, all done after {wall:.1f} s")
    print(f"             first token after {ttft:.2f} s (mean), longest gap between two {gap:.3f} s")

# %% [markdown]
# Orca (Yu et al. 2022) had the idea of deciding at every iteration; Sarathi (Agrawal et al. 2023) that of cutting
# prompts so that those who write do not notice.
#
# ## What it costs, and when it does not help
#
# With requests of equal lengths that all come at once, nobody waits for anybody, and levels 02 and 03 do the same. With
# more people than memory, admitting everybody means that somebody gives way and computes again. And first come, first
# served is not always what one wants: `--scheduling-policy priority`.
#
# ## Questions
#
# <details><summary>Why do running sequences come before waiting ones?</summary>
# They hold memory. The sooner they end, the sooner it is free; and somebody who reads an answer notices a pause more
# than somebody who waits for its beginning.</details>
#
# <details><summary>C is short: before B, it would have fitted into the first step. Why may it not overtake?</summary>
# Then a stream of short ones would keep a long one waiting for ever.</details>
#
# <details><summary>Why does a step in which somebody gave way admit nobody?</summary>
# Whoever came in would take the blocks that were just given up, and the next to find no room would be whoever they were
# given up for.</details>
#
# **Write it:** `python -m levels exercise 3`. **Next:** [04_prefix_caching](04_prefix_caching.ipynb).
