"""What drawing costs beside the forward that it follows: 256 rows of 49,152 words, each with wishes of its own.

    python -m benchmarks.sampling [--rows N] [--context N] [--json FILE]

    forward     one decode step of the default model in float32, every sequence with `context` tokens of keys
    mixed       the wishes of WISHES, one row after the other
    greedy      an argmax, and nothing else; the other lines are all rows with one kind of wishes
    structured  under masks that are made already; `masks` is to make them, which the scheduler does while it packs

Expected: mixed, its masks included, below a tenth of the forward, greedy below a fiftieth. Each figure is the quickest
of many calls, all of one run: whatever else the machine does can only make a call slower."""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.machine import describe_commit, describe_machine, describe_versions
from minipaged.batch import Chunk, pack
from minipaged.config import DEFAULT_MODEL, EngineConfig
from minipaged.loading import load_model
from minipaged.logprobs import measure
from minipaged.runner import ModelRunner
from minipaged.sampling import sample
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from minipaged.structured import Grammar
from minipaged.vocabulary import Vocabulary

WISHES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "plain": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "penalised": {"temperature": 0, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
    "penalised and cut": {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "presence_penalty": 0.5},
    "biased": {"temperature": 0, "logit_bias": {7: -100, 9: 5}, "min_tokens": 500, "max_tokens": None},
    "allowed": {"temperature": 0.8, "allowed_token_ids": range(100, 200)},
    "structured": {"temperature": 0.8, "structured_outputs": {"regex": "(?s).*"}},
}

CALLS, SPAN_S = 5, 2.0  # so many calls at least, and for so long


def best_seconds(work: Callable[[], object]) -> float:
    """Of the quickest call."""
    best, start, calls = float("inf"), time.perf_counter(), 0
    while calls < CALLS or time.perf_counter() - start < SPAN_S:
        before = time.perf_counter()
        work()
        best, calls = min(best, time.perf_counter() - before), calls + 1
    return best


def decoding(kinds: list[str], context: int, block_size: int, vocabulary: Vocabulary) -> list[Chunk]:
    """For each kind a sequence of `context` tokens, a quarter of them its prompt, all but the newest computed."""
    rng, chunks = Random(0), []
    num_blocks = -(-context // block_size)
    for i, kind in enumerate(kinds):
        params = SamplingParams(seed=i, **WISHES[kind])
        prompt = [rng.randrange(100, vocabulary.size) for _ in range(context // 4)]
        seq = Sequence(str(i), prompt, params, 10**6, frozenset({2}), grammar=open_grammar(params, vocabulary))
        for _ in range(context - context // 4):
            seq.tokens.append(speak(seq, rng, vocabulary.size))
        seq.num_computed_tokens = context - 1
        seq.block_table = list(range(i * num_blocks, (i + 1) * num_blocks))
        chunks.append(Chunk(seq, 1))
    return chunks


def open_grammar(params: SamplingParams, vocabulary: Vocabulary) -> Grammar | None:
    if params.structured_outputs is None or vocabulary.grammars is None:
        return None
    grammar = vocabulary.grammars.open(params.structured_outputs)
    grammar.compiled.result()
    return grammar


def speak(seq: Sequence, rng: Random, vocab_size: int) -> int:
    """Any word that may follow."""
    bits = seq.grammar.permitted(seq.tokens[seq.num_prompt_tokens :]) if seq.grammar else None
    while True:
        token = rng.randrange(3, vocab_size)
        if bits is None or bits[token // 8] >> token % 8 & 1:
            return token


def measure_kinds(logits: torch.Tensor, kinds: list[str], context: int, vocabulary: Vocabulary) -> dict[str, float]:
    """Milliseconds to sample all rows: with each kind of wishes, then with all of them mixed."""
    ways = {kind: [kind] * len(kinds) for kind in WISHES} | {"mixed": kinds}
    figures = {}
    for name, way in ways.items():
        rows = pack(decoding(way, context, context, vocabulary), context).rows
        figures[name] = 1e3 * best_seconds(partial(sample, logits, rows))
    return figures


def make_masks(chunks: list[Chunk]) -> None:
    """Of those that have a grammar, where they stand."""
    for seq in (chunk.seq for chunk in chunks):
        if seq.grammar:
            seq.grammar.permitted(seq.tokens[seq.num_prompt_tokens :])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=256, help="sequences in the batch (default %(default)s)")
    parser.add_argument("--context", type=int, default=128, help="tokens of each (default %(default)s)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default %(default)s)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    args = parser.parse_args()
    model = load_model(EngineConfig(model=args.model, device="cpu", dtype="float32"))
    facts = {"machine": describe_machine(), "versions": describe_versions(), **describe_commit()}
    figures = run(model, args.rows, args.context)
    for name, ms in figures.items():
        print(f"{name:<20}{ms:>10.1f} ms{ms / figures['forward']:>10.1%} of the forward")
    if args.json:
        args.json.write_text(json.dumps({**facts, "rows": args.rows, "context": args.context, "ms": figures}, indent=1))


def run(model: ModelRunner, num_rows: int, context: int) -> dict[str, float]:
    kinds = list(islice(cycle(WISHES), num_rows))
    chunks = decoding(kinds, context, 16, model.vocabulary)
    batch = pack(chunks, 16)
    kv_cache = model.new_kv_cache(num_blocks=num_rows * -(-context // 16), block_size=16)
    logits = model(batch, kv_cache)
    figures = {"forward": 1e3 * best_seconds(lambda: model(batch, kv_cache))}
    figures |= measure_kinds(logits, kinds, context, model.vocabulary)
    figures["masks"] = 1e3 * best_seconds(lambda: make_masks(chunks))
    asking = [row._replace(params=SamplingParams(logprobs=5)) for row in batch.rows]
    tokens = [[token_id] for token_id in sample(logits, batch.rows)]
    asked = batch._replace(rows=asking)
    return figures | {"logprobs=5": 1e3 * best_seconds(lambda: measure(asked, logits, tokens))}


if __name__ == "__main__":
    main()
