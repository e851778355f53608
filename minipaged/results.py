"""What a run did, as one JSON document: a request each, and what the whole cost.

    ttft   arrival -> first token              e2e   arrival -> end
    itl    token -> next token, all gaps       tpot  (last token - first token) / (tokens - 1), one a choice

    wall_s  = model_s (inside the forward) + the engine's own cost

A request for n answers waits for the first token of any and for the end of all; gaps are those within each. Its own
answer is its first choice's. Invariant: the keys are always the same; what does not apply at a level is null, never
absent. (From level 01.)"""

from collections.abc import Iterable
from dataclasses import fields
from itertools import pairwise
from statistics import fmean
from typing import Any

from .config import EngineConfig
from .driver import Record, Run
from .outputs import CompletionOutput
from .trace import kv_usage

Document = dict[str, Any]
LEVEL_OF = {f.name: f.metadata["level"] for f in fields(EngineConfig)}


def make_document(run: Run, level: str) -> Document:
    """The document of contract `--json`; level is the package's name, like "03_continuous_batching"."""
    config, number = run.engine.config, int(level[:2])
    return {
        "level": level,
        **{name: getattr(config, name) for name in ("model", "device", "dtype", "attention_backend")},
        "config": {f.name: config_value(config, f.name, f.metadata["level"], number) for f in fields(EngineConfig)},
        "requests": [describe(i, record) for i, record in enumerate(run.records)],
        "metrics": measure(run, number),
    }


def config_value(config: EngineConfig, name: str, since: int, level: int) -> Any:
    return getattr(config, name) if since <= level else None


def describe(index: int, record: Record) -> Document:
    """One request of a run that is over; times are null when there was no such moment."""
    output, arrival = record.output, record.request.arrival_s
    assert output is not None, f"request {index} has no output: its run is not over"
    choices = [{"index": said.index, **describe_answer(said)} for said in output.outputs]
    return {
        "index": index,
        "prompt_token_ids": output.prompt_token_ids,
        **describe_answer(output.outputs[0]),
        "error": output.error,
        "cached_tokens": output.num_cached_tokens,
        "num_preemptions": output.num_preemptions,
        "ttft_s": record.token_times[0] - arrival if record.token_times else None,
        "latency_s": None if record.end_s is None else record.end_s - arrival,
        **({"choices": choices} if len(choices) > 1 else {}),
    }


def describe_answer(said: CompletionOutput) -> Document:
    return {name: getattr(said, name) for name in ("token_ids", "text", "finish_reason", "stop_reason")}


def measure(run: Run, level: int) -> Document:
    num_prompt = sum(len(record.request.prompt_token_ids) for record in run.records)
    num_output = sum(record.num_tokens for record in run.records)
    steps = run.engine.trace.steps[run.first_step :]  # the engine may have served others before
    return {
        "wall_s": run.wall_s,
        "model_s": run.model_s,
        "steps": run.num_steps,
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "output_tokens_per_s": num_output / run.wall_s if run.wall_s else None,
        "total_tokens_per_s": (num_prompt + num_output) / run.wall_s if run.wall_s else None,
        **latencies(run.records),
        "preemptions": sum(len(step.preempted) for step in steps),
        **prefix_hits(run, level),
        **speculation(run, level),
        "kv": kv_usage(steps),
    }


def prefix_hits(run: Run, level: int) -> Document:
    """Prompt tokens found at first admissions, those of every choice, and their share of all that were looked up."""
    outputs = [record.output for record in run.records if record.output]
    started = [(output, said) for output in outputs for said in output.outputs if said.token_ids]
    num_found = sum(said.num_cached_tokens for _, said in started)
    num_prompt = sum(len(output.prompt_token_ids) for output, _ in started)
    applies = level >= LEVEL_OF["enable_prefix_caching"]
    return {
        "prefix_cache_hit_tokens": num_found if applies else None,
        "prefix_cache_hit_rate": (num_found / num_prompt if num_prompt else 0.0) if applies else None,
    }


def speculation(run: Run, level: int) -> Document:
    """What was guessed, and how much of it was right, by the trace's step records.

    accepted_per_position[i] counts the guesses whose first i + 1 tokens were right, as far as anybody guessed;
    tokens_per_forward is what one sequence gains from one forward, 1 without speculation."""
    names = ("draft_tokens", "accepted_tokens", "acceptance_rate", "accepted_per_position", "tokens_per_forward")
    if level < LEVEL_OF["num_speculative_tokens"]:
        return dict.fromkeys(names)
    steps = run.engine.trace.steps[run.first_step :]
    num_drafted = sum(sum(step.draft_tokens.values()) for step in steps)
    accepted = [num_right for step in steps for num_right in step.accepted_runs]
    num_forwards = sum(len(set(times)) for record in run.records for times in record.choice_times)
    num_output = sum(record.num_tokens for record in run.records)
    values = (
        num_drafted,
        sum(accepted),
        sum(accepted) / num_drafted if num_drafted else 0.0,
        [sum(n > i for n in accepted) for i in range(max((step.longest_draft for step in steps), default=0))],
        num_output / num_forwards if num_forwards else None,
    )
    return dict(zip(names, values, strict=True))


def latencies(records: Iterable[Record]) -> Document:
    started = [record for record in records if record.num_tokens]
    several = [times for record in started for times in record.choice_times if len(times) > 1]
    return {
        "ttft_s": spread([record.token_times[0] - record.request.arrival_s for record in started]),
        "itl_s": spread([after - before for times in several for before, after in pairwise(times)]),
        "tpot_s": spread([(times[-1] - times[0]) / (len(times) - 1) for times in several]),
        "e2e_s": spread([r.end_s - r.request.arrival_s for r in started if r.end_s is not None]),
    }


def spread(values: list[float]) -> Document:
    """Mean, median and 99th percentile (nearest rank); nulls when there is nothing to measure."""
    if not values:
        return {"mean": None, "p50": None, "p99": None}
    ranked = sorted(values)
    at = {f"p{p}": ranked[-(-p * len(ranked) // 100) - 1] for p in (50, 99)}
    return {"mean": fmean(values), **at}
