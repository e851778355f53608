"""Two tables of a document: what every engine reached, and how far ours is from where it has to be.

    engine             W1 decode   W1 first   W2 output   W3 output   W4 prompt     MB
    floor                     55                    263         225         545
    minipaged:4        38 ± 1 %     245 ms    181 ± 2 %
    vllm:float32       25 ± 2 %     ...                                                median ± half of the range

    ours         beside            workload            ratio   from - to   goal
    float32      vllm:float32      W2 output tokens/s   1.21   1.18-1.26   1.0, then 1.1     reached
    float32      openvino:float32  W4 prompt tokens/s   0.94   0.93-0.96   1.0               missed by 6 %

Everything here is read from the document, never measured."""

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.document import Record, middle, select, values
from benchmarks.report import format_range, format_value

from . import is_ours
from .targets import OWN_COST, Outcome, find_outcomes, precision_of

FIGURES = (
    ("W1", "decode_tokens_per_s", "W1 decode tok/s"),
    ("W1", "ttft_s", "W1 first token s"),
    ("W2", "output_tokens_per_s", "W2 output tok/s"),
    ("W3", "output_tokens_per_s", "W3 output tok/s"),
    ("W4", "prompt_tokens_per_s", "W4 prompt tok/s"),
)


def print_tables(console: Console, document: Record) -> None:
    console.print(make_figures(document))
    if found := find_outcomes(document):
        console.print(make_targets(found))
    for engine in filter(is_ours, document["engines"]):
        if (cost := middle(values(select(document, "W2", engine), "own_cost"))) is not None:
            goal = OWN_COST.get(precision_of(engine), OWN_COST["int8"])
            verdict = "reached" if cost <= goal else "missed"
            console.print(f"{engine}: {cost:.1%} of W2 outside the model's forward; goal {goal:.0%}, {verdict}")
    count, runs = len({record["repetition"] for record in document["repetitions"]}), len(document.get("runs", [1]))
    console.print(
        f"{document['model']}, {document['threads']} threads, lengths × {document['scale']:g}, {count} repetitions in "
        f"{runs} runs; medians ± half the range; a ratio compares within a repetition"
    )
    if document["interrupted"]:
        console.print("interrupted: this is what there was")


def make_figures(document: Record) -> Table:
    shown = [figure for figure in FIGURES if figure[0] in document["workloads"]]
    table = Table(title="medians", title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("engine", no_wrap=True)
    for _, _, label in shown:
        table.add_column(label, justify="right")
    table.add_column("agrees", justify="right")
    floors = [document["workloads"][workload]["floors"].get(key) for workload, key, _ in shown]
    table.add_row("floor, float32", *(format_value(floor) for floor in floors), "", style="dim")
    for engine in document["engines"]:
        records = [select(document, workload, engine) for workload, _, _ in shown]
        if any(records):
            cells = [summarize(values(found, key)) for found, (_, key, _) in zip(records, shown, strict=True)]
            table.add_row(engine, *cells, agreement(document, engine))
    return table


def summarize(found: list[float]) -> str:
    if (value := middle(found)) is None:
        return ""
    spread = (max(found) - min(found)) / 2 / value
    return f"{format_value(value)} ± {spread:.0%}"


def agreement(document: Record, engine: str) -> str:
    """The share of tokens before the first difference from the run's first engine; near-ties part greedy engines."""
    records = [r["agreement"] for r in document["repetitions"] if r["engine"] == engine and r["agreement"]]
    found = middle(values(records, "equal_tokens"))
    return "" if found is None else f"{found:.0%}"


def make_targets(outcomes: Iterable[Outcome]) -> Table:
    title = "ours beside them: how many times as fast"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("ours", "beside", "workload"):
        table.add_column(name, no_wrap=True)
    for name in ("ratio", "from - to", "goal", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for outcome in outcomes:
        target = outcome.target
        what = f"{target.workload} {target.key.removesuffix('_tokens_per_s')}"
        goals = ", then ".join(f"{goal:g}" for goal in target.goals)
        cells = (format_value(outcome.median), format_range(outcome.ratios), goals, verdict_of(outcome))
        table.add_row(outcome.engine, target.theirs, what, *cells)
    return table


def verdict_of(outcome: Outcome) -> str:
    """Of the farthest goal that is reached; otherwise by how much the first is missed."""
    goals, ratio = outcome.target.goals, outcome.median
    if ratio >= goals[-1]:
        return "reached"
    if ratio >= goals[0]:
        return f"reached {goals[0]:g}; {1 - ratio / goals[-1]:.0%} short of {goals[-1]:g}"
    return f"missed by {1 - ratio / goals[0]:.0%}"
