"""The engine without a server, for comparison: one request after the other, or all of them at once.

    latency      one at a time: how soon the first token, how fast the others, when nobody else is there
    throughput   all at once: how many tokens a second, when everybody is there

(From level 08.)"""

import time
from argparse import Namespace
from collections.abc import Sequence

from ..cli import DONE, FAILED, engine_options
from ..driver import Record, Request, Run
from ..llm import LLM, encode_prompt
from ..sampling_params import SamplingParams
from .clients import Wish, make_wishes
from .figures import Figures, Promise, Timing, summarise
from .results import publish

LAST_LEVEL = 8


def latency(args: Namespace) -> int:
    return measure(args, "latency")


def throughput(args: Namespace) -> int:
    return measure(args, "throughput")


def measure(args: Namespace, mode: str) -> int:
    llm = LLM(**engine_options(args, LAST_LEVEL))
    wishes = make_wishes(args.num_prompts, args.input_len, args.output_len, args.prefix_len, args.seed)
    requests = [read(llm, wish) for wish in wishes]
    Run(llm.engine, [read(llm, Wish("warm up", 4))]).go()  # whatever is compiled or allocated at first use
    figures = run_all(llm, [[one] for one in requests] if mode == "latency" else [requests])
    del llm  # and whatever processes it has
    publish({"mode": mode, "runs": [figures]}, args)
    return FAILED if figures["failed"] else DONE


def read(llm: LLM, wish: Wish) -> Request:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=wish.max_tokens)
    return Request(encode_prompt(wish.prompt, llm.tokenizer), params)


def run_all(llm: LLM, groups: Sequence[list[Request]]) -> Figures:
    """One group after the other; everybody's clock starts with their group."""
    start, timings = time.perf_counter(), list[Timing]()
    for group in groups:
        timings += [note(record) for record in Run(llm.engine, group).go().records]
    return {"request_rate": None, **summarise(timings, time.perf_counter() - start, Promise())}


def note(record: Record) -> Timing:
    output, moments = record.output, record.token_times
    failed = None if output and record.end_s is not None and moments else "it did not come to its end"
    error = output.error if output and output.error else failed
    end, num_prompt = record.end_s or 0.0, len(record.request.prompt_token_ids)
    return Timing(0.0, 0.0, moments, end, num_prompt, record.num_tokens, error)
