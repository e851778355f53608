"""One run, one JSON document: where and how it was measured, and every repetition, not only the ones we like.

    {"created", "command", "machine", "versions", "commit", "dirty", "model", "threads", "scale", "seed", "interrupted",
     "limits":      {"product_gflop_s", "memory_read_gb_s"},
     "engines":     {"minipaged:3": {"load_s", "peak_memory_mb", "settings": {...}}},
     "workloads":   {"W2": {"what", "figures": [...], "floors": {...}}},
     "repetitions": [{"workload", "engine", "repetition", "num_requests", "subset", "prompt_tokens", "output_tokens",
                      "wall_s", "ttft_s", "output_tokens_per_s", "prompt_tokens_per_s", "decode_tokens_per_s",
                      "model_s", "own_cost", "checksum", "agreement"}]}

subset: the indices of the requests that a slow engine was asked for; null: all. own_cost: (wall_s - model_s) / wall_s.
agreement: with the run's first engine, on the requests both had; greedy engines that add in another order part at
near-ties, so it is reported and nothing fails. Invariant: keys are always there; what does not apply is null."""

import hashlib
import json
from collections.abc import Iterable
from itertools import takewhile
from statistics import median
from typing import Any, NamedTuple

from benchmarks.process import Sample
from benchmarks.workloads import Request

Record = dict[str, Any]
Outputs = dict[int, list[int]]  # by the request's index


class Job(NamedTuple):
    workload: str
    engine: str
    repetition: int
    subset: list[int] | None


def make_record(job: Job, requests: list[Request], sample: Sample, agreement: Record | None) -> Record:
    num_prompt = sum(len(request.prompt_token_ids) for request in requests)
    num_output = sum(len(tokens) for tokens in sample.token_ids)
    return {
        "workload": job.workload,
        "engine": job.engine,
        "repetition": job.repetition,
        "num_requests": len(requests),
        "subset": job.subset,
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "wall_s": sample.wall_s,
        "ttft_s": sample.ttft_s,
        "output_tokens_per_s": num_output / sample.wall_s,
        "prompt_tokens_per_s": num_prompt / sample.wall_s,
        "decode_tokens_per_s": decode_rate(sample),
        "model_s": sample.model_s,
        "own_cost": None if sample.model_s is None else (sample.wall_s - sample.model_s) / sample.wall_s,
        "checksum": checksum(sample.token_ids),
        "agreement": agreement,
    }


def decode_rate(sample: Sample) -> float | None:
    """Tokens per second after the first one, of a request that was alone."""
    alone = len(sample.token_ids) == 1 and len(sample.token_ids[0]) > 1
    return (len(sample.token_ids[0]) - 1) / (sample.wall_s - sample.ttft_s) if alone else None


def checksum(token_ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(token_ids).encode()).hexdigest()[:16]


def index_outputs(token_ids: list[list[int]], subset: list[int] | None) -> Outputs:
    return dict(zip(range(len(token_ids)) if subset is None else subset, token_ids, strict=True))


def compare(engine: str, reference: Outputs, outputs: Outputs) -> Record:
    """How far the outputs are those of the reference engine: whole requests, and tokens before the first difference."""
    common = sorted(reference.keys() & outputs.keys())
    pairs = [(reference[i], outputs[i]) for i in common]
    same = sum(len(list(takewhile(lambda ab: ab[0] == ab[1], zip(*pair, strict=True)))) for pair in pairs)
    total = sum(len(tokens) for tokens, _ in pairs)
    return {
        "with": engine,
        "num_requests": len(common),
        "equal_requests": sum(a == b for a, b in pairs),
        "equal_tokens": same / total if total else None,
    }


def select(document: Record, workload: str, engine: str) -> list[Record]:
    return [r for r in document["repetitions"] if r["workload"] == workload and r["engine"] == engine]


def values(records: Iterable[Record], key: str) -> list[float]:
    return [record[key] for record in records if record[key] is not None]


def speedups(ours: list[Record], theirs: list[Record], key: str, *, less_is_better: bool) -> list[float]:
    """How many times better ours is, repetition by repetition: what was measured side by side is compared."""
    other = {r["repetition"]: r[key] for r in theirs if r[key] is not None}
    pairs = [(r[key], other[r["repetition"]]) for r in ours if r[key] is not None and r["repetition"] in other]
    return [their / our if less_is_better else our / their for our, their in pairs]


def middle(numbers: list[float]) -> float | None:
    return median(numbers) if numbers else None
