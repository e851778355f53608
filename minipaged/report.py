"""Two runs side by side: what each cost, read from their documents alone.

                                 02 paged attention   03 continuous batching
    steps                                       246                      194
    short ones done after                     9.8 s                    3.1 s   <- what the lesson is about

Invariant: every number comes from the result document and the trace, so whoever has these can redraw the table. (From
level 01.)"""

from collections.abc import Callable, Collection
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

Json = dict[str, Any]


class Outcome(NamedTuple):
    """A run's two documents, and whether Ctrl-C ended it."""

    document: Json
    trace: Json
    interrupted: bool = False


def steps(run: Outcome) -> str:
    return f"{run.document['metrics']['steps']}"


def seconds(run: Outcome) -> str:
    return f"{run.document['metrics']['wall_s']:.1f} s"


def throughput(run: Outcome) -> str:
    rate = run.document["metrics"]["output_tokens_per_s"]
    return "-" if rate is None else f"{rate:.1f}"


def first_token(run: Outcome) -> str:
    return format_s(run.document["metrics"]["ttft_s"]["mean"])


def mean_short_latency(run: Outcome) -> float | None:
    """Mean latency of all requests but the one with the most tokens, seconds."""
    ranked = sorted(run.document["requests"], key=lambda request: len(request["token_ids"]))
    done = [request["latency_s"] for request in ranked[:-1] if request["latency_s"] is not None]
    return fmean(done) if done else None


def short_ones(run: Outcome) -> str:
    return format_s(mean_short_latency(run))


def last_done(run: Outcome) -> str:
    done = [request["latency_s"] for request in run.document["requests"] if request["latency_s"] is not None]
    return format_s(max(done, default=None))


def at_once(run: Outcome) -> str:
    """The most requests that ran in one step."""
    return str(max((len(step["num_scheduled_tokens"]) for step in run.trace["steps"]), default=0))


def reserved(run: Outcome) -> str:
    return format_slots(run.document["metrics"]["kv"]["reserved_slots_mean"])


def used(run: Outcome) -> str:
    return format_slots(run.document["metrics"]["kv"]["used_slots_mean"])


def waste(run: Outcome) -> str:
    share = run.document["metrics"]["kv"]["waste"]
    return "-" if share is None else f"{share:.1%}"


def tokens_run(run: Outcome) -> str:
    return f"{sum(sum(step['num_scheduled_tokens'].values()) for step in run.trace['steps']):,}"


def found(run: Outcome) -> str:
    """Prompt tokens whose keys and values were there already, and their share."""
    metrics = run.document["metrics"]
    tokens, rate = metrics["prefix_cache_hit_tokens"], metrics["prefix_cache_hit_rate"]
    return "-" if tokens is None else f"{tokens:,} ({rate:.0%})"


def tokens_per_forward(run: Outcome) -> str:
    number = run.document["metrics"]["tokens_per_forward"]
    return "-" if number is None else f"{number:.2f}"


def guesses(run: Outcome) -> str:
    """Tokens guessed, and the share of them that was right."""
    metrics = run.document["metrics"]
    tokens, rate = metrics["draft_tokens"], metrics["acceptance_rate"]
    return "-" if tokens is None else f"{tokens:,} ({rate:.0%} right)"


def run_by_replica(run: Outcome) -> str:
    """Tokens run through each replica's model."""
    sums: dict[int, int] = {}
    for step in run.trace["steps"]:
        if (replica := step.get("replica")) is not None:
            sums[replica] = sums.get(replica, 0) + sum(step["num_scheduled_tokens"].values())
    return " + ".join(f"{sums[replica]:,}" for replica in sorted(sums)) or "-"


def preemptions(run: Outcome) -> str:
    return str(run.document["metrics"]["preemptions"])


def format_s(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def format_slots(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


ROWS: dict[str, Callable[[Outcome], str]] = {
    "seconds in all": seconds,
    "steps": steps,
    "output tokens/s": throughput,
    "first token after (mean)": first_token,
    "short ones done after (mean)": short_ones,
    "last one done after": last_done,
    "most requests in one step": at_once,
    "KV slots reserved (mean)": reserved,
    "KV slots used (mean)": used,
    "KV waste (reserved, never used)": waste,
    "tokens run through the model": tokens_run,
    "of them by each replica": run_by_replica,
    "prompt tokens found": found,
    "tokens guessed": guesses,
    "tokens per forward": tokens_per_forward,
    "preemptions": preemptions,
}


def make_table(title: str, runs: Collection[Outcome], look_at: Collection[str] = ()) -> Table:
    """A column for each run; the rows of look_at stand out."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for run in runs:
        table.add_column(run.document["level"].replace("_", " "), justify="right")  # wraps where it is narrow
    for name, measure in ROWS.items():
        mark, style = ("→ ", "bold green") if name in look_at else ("  ", None)
        table.add_row(mark + name, *(measure(run) for run in runs), style=style)
    return table
