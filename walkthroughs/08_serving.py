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
# # Level 08: who is listening?
#
# An engine turns a batch. People come one by one, over a network, read slowly, change their minds and hang up. Here
# nobody waits for anybody. We follow one request from its JSON to its last event, hang up on a server and look at its
# memory, and measure what many clients feel.

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

import asyncio
import re
import time
from contextlib import ExitStack
from functools import partial

import httpx
import psutil

from levels import load
from minipaged import AsyncLLM, EngineConfig, SamplingParams
from minipaged.bench.arrivals import arrivals
from minipaged.bench.clients import Clients, make_wishes
from minipaged.bench.figures import Promise, summarise
from minipaged.bench.tune import server
from minipaged.core.replicas import Replicas
from minipaged.core.start import start_here
from minipaged.desk import FrontDesk
from minipaged.loading import load_model
from minipaged.serving import async_llm, connection, frontend
from minipaged.serving.answers import Tale
from minipaged.serving.letterbox import Letterbox
from minipaged.serving.protocol import ChatRequest
from minipaged.serving.reading import read_chat
from minipaged.viz import quote
from minipaged.viz_processes import histogram, moments

level = load(8)
config = EngineConfig(max_model_len=256, num_blocks=128)
model = load_model(config)
tokenizer = model.vocabulary.tokenizer

# %% [markdown]
# ## The problem
#
# Two readers of level 07's engine. A reads slowly: a bad connection, a tenth of a second for every piece.

# %%
engine = load(7).Engine(config, model)
twenty = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
for name in "AB":
    engine.add_request(tokenizer.encode("One, two, three,"), twenty, name)
heard, start = {"A (slow)": [], "B": []}, time.perf_counter()
while engine.has_unfinished_requests():
    for output in engine.step():
        if output.request_id == "A":
            time.sleep(0.1)  # A's network takes it away
        heard["B" if output.request_id == "B" else "A (slow)"].append(time.perf_counter() - start)
moments(heard, "when each heard something: B waits for A's network")

# %% [markdown]
# Each step waits for A, and so does everybody whose tokens are in it.
#
# ## The idea

# %%
print(level.__doc__)

# %% [markdown]
# The core never waits for a client, because it does not know one: it puts a letter into a box and goes on. In the box
# lies one letter, the newest, and it holds all that came before:

# %%
quote(Letterbox)

# %%
box = Letterbox()
for letter in ("A", "A pen", "A penny", "A penny for"):
    box.put(letter)
print("a slow reader finds:", await box.get())

# %% [markdown]
# ## One request, from JSON to its last event
#
# What a client sends. Types are checked on the way in, ranges by the engine's own rules:

# %%
body = ChatRequest.model_validate_json(
    """{"model": "smollm2-135m", "messages": [{"role": "user", "content": "Name the capital of France."}],
        "max_tokens": 8, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}}"""
)
asked, shape = read_chat(body, FrontDesk(model.config, model.vocabulary), "1", "smollm2-135m")
print(asked.prompts[0])
print(repr(tokenizer.decode(asked.prompts[0][-9:])), "is how it ends")
print("max_tokens", asked.params.max_tokens, " temperature", asked.params.temperature)

# %% [markdown]
# Text has become tokens. Now the engine's side; here its core is in our own process, behind the same wire as always, so
# that we can look at one step after the other. A *tale* knows what the client has been told, a *shape* how OpenAI's API
# writes it down:

# %%
quote(Tale.go_on)

# %%
wire, vocabulary = start_here(config, model)
replicas = Replicas(wire, vocabulary, partial(async_llm.read_along, vocabulary.decode))
replicas.add(asked.prompts[0], asked.params, "1")
tale, chunks = Tale(asked.params.n, 1), []
while replicas.entries:
    for told in replicas.poll():
        news = list(tale.go_on(0, told.output))
        chunks += [chunk for one in news for chunk in shape.chunks(one, told.output)]
        print(
            f"{len(told.output.outputs[0].token_ids)} tokens so far; new for the client: {[one.text for one in news]}"
        )

# %% [markdown]
# And these are the events that go out, one after the other. Server-sent events are lines of text over a connection
# that stays open. (The moment of creation is left out: it is another one each time.)

# %%
for chunk in [*chunks[:2], chunks[-1], shape.usage_chunk(tale.usage)]:
    print(frontend.event({key: value for key, value in chunk.items() if key != "created"}).decode().strip())
print(frontend.DONE.decode().strip())

# %% [markdown]
# ## The same in processes
#
# A server as anybody would start it, a child of this notebook: a front, and below it a core.

# %%
processes = ExitStack()
url = processes.enter_context(server({"max_model_len": 256, "num_blocks": 128}))
front = psutil.Process().children()[-1]
print("front: ", " ".join(front.cmdline()[1:4]))
print("core:  ", [" ".join(child.cmdline()[1:3]) for child in front.children()])

# %%
http = httpx.AsyncClient(base_url=url, timeout=60)
lines = []
async with http.stream("POST", "/v1/chat/completions", json=body.model_dump(exclude_none=True)) as answer:
    print(answer.status_code, answer.headers["content-type"])
    async for line in answer.aiter_lines():
        lines += [line] if line else []
for line in (lines[0], lines[-1]):
    print(re.sub(r'("id":"chatcmpl-|"created":)\w+', r"\1...", line))

# %% [markdown]
# ## Who hangs up
#
# A client asks for a long answer, reads a little and goes. Whatever is done for a client is done while it listens:

# %%
quote(connection.while_connected)

# %%
wish = {"model": "smollm2-135m", "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
gauge = re.compile(r"^minipaged:(num_requests_running|kv_cache_usage_perc)\{.*\} (\S+)$", re.M)
async with http.stream("POST", "/v1/completions", json=wish) as answer:
    await anext(answer.aiter_lines())
    print("listens:  ", dict(gauge.findall((await http.get("/metrics")).text)))
left = time.perf_counter()
while float(dict(gauge.findall((await http.get("/metrics")).text))["num_requests_running"]):
    await asyncio.sleep(0.01)
print("has gone: ", dict(gauge.findall((await http.get("/metrics")).text)))
print(f"its blocks were free after {time.perf_counter() - left:.3f} s")

# %% [markdown]
# ## Somebody reads slowly
#
# A and B again, now with letterboxes. `AsyncLLM` is what the server is made of. A reads one output, then not a word
# until B has heard everything:

# %%
llm = AsyncLLM(max_model_len=256, num_blocks=128)
a = llm.generate("One, two, three,", twenty)
first = await anext(a)
heard, start = {"B": []}, time.perf_counter()
async for output in llm.generate("One, two, three,", twenty):
    heard["B"].append(time.perf_counter() - start)
    words = output.outputs[0].text
rest = await anext(a)
print("A's first letter was the end:", first.finished)
print("B heard", repr(words))
print("A's second letter is the end:", rest.finished, "and holds all", len(rest.outputs[0].token_ids), "tokens")
moments(heard, "when B heard something, although A reads nothing")

# %%
await a.aclose()
llm.shutdown()

# %% [markdown]
# ## The experiment
#
# Sixteen clients, each with a connection of its own, who do not wait for one another: first two a second, then all at
# once. *Time to first token* (TTFT) is what somebody feels who waits for an answer to begin, *inter-token latency*
# (ITL) what somebody feels who reads along.

# %%
clients, results = Clients(http, "smollm2-135m", None), {}
for name, rate in {"two a second": 2.0, "all at once": float("inf")}.items():
    wishes = make_wishes(16, input_len=24, output_len=12, prefix_len=0, seed=round(min(rate, 99)))
    results[name] = await clients.run(wishes, arrivals(16, rate, 1.0, seed=0))
await http.aclose()
for name, (timings, wall_s) in results.items():
    figures = summarise(timings, wall_s, Promise(ttft=0.5))
    ttft, itl = figures["ttft_s"], figures["itl_s"]
    print(f"{name}: {figures['output_tokens_per_s']:.1f} tokens/s, {figures['failed']} failed")
    print(f"    TTFT half {ttft['p50']:.3f} s, 99 of 100 {ttft['p99']:.3f} s; ITL half {itl['p50']:.3f} s")
    print(f"    goodput {figures['goodput_requests_per_s']:.2f} answers a second that began within half a second")

# %%
histogram(
    {f"TTFT, {name}": [timing.ttft for timing in timings] for name, (timings, _) in results.items()}, "16 clients"
)

# %%
histogram(
    {f"ITL, {name}": [gap for one in timings for gap in one.gaps] for name, (timings, _) in results.items()}, "all"
)

# %% [markdown]
# Each client, from the moment it came. In the second picture all prompts are read first, and then everybody's tokens
# come in step, because they are one batch:

# %%
moments(
    {f"client {i:02}": [m - one.arrival for m in one.moments] for i, one in enumerate(results["two a second"][0])},
    "two a second: seconds since each one's arrival",
)

# %%
moments(
    {f"client {i:02}": [m - one.arrival for m in one.moments] for i, one in enumerate(results["all at once"][0])},
    "all at once",
)

# %% [markdown]
# All at once gives more tokens a second in all, and a longer wait for the first. Which of the two is better depends on
# what was promised: an answer that comes too late counts for nothing. DistServe (Zhong et al. 2024) calls answers in
# time per second *goodput*. At the end nothing is left running:

# %%
processes.close()
psutil.Process().children()

# %% [markdown]
# ## What it costs, and when it does not help
#
# One more process, and a message for every step. The front turns text into tokens and back while the core computes, so
# on a machine with a core to spare it costs nothing; on this one the two share what there is. For a file of prompts a
# server is a detour: `LLM.generate` does the same without it.
#
# ## Questions
#
# <details><summary>Why does the letterbox hold one letter, and not a queue of them?</summary>
# A queue for somebody who reads slowly grows without end. Each letter holds all that came before, so the newest is
# all there is to know.</details>
#
# <details><summary>Why is a full house told 503 at once, instead of being let wait?</summary>
# Whoever waits longer than anybody's patience is served in vain, and keeps the next ones waiting, too. Told at once,
# they can go elsewhere or come back later.</details>
#
# <details><summary>Why do headers wait for the first words?</summary>
# A status can be sent once. What is refused, or fails before the first word, still has one of its own (400, 503,
# 500); later only an event can tell.</details>
#
# <details><summary>Two requests a second, sixteen clients: why does TTFT have a tail at all?</summary>
# Clients do not know of each other: some come within one step. Whoever comes in the middle of a step waits for its
# end, and their prompts are read in one batch.</details>
#
# That was the ladder. **From here:** [to vLLM](../docs/from_here_to_vllm.md).
