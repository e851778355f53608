"""The tables after a run: a figure's median, how far its repetitions were apart, how many times better than the others.

    W2: output tokens/s of 64 requests at once (floor 263)
    engine                 median    from - to   × one   × static16   own cost   agrees
    transformers:one          9.1    8.9 - 9.3
    transformers:static16    36.8   35.1 - 37.0   4.04                             100%
    minipaged:3               148     141 - 150   16.2         4.02       2.1%     100%

A ratio compares with an engine above: the median of the ratios of single repetitions, each measured side by side. The
floor is what nobody can beat on this machine (floors.py). Everything here is read from the document, never measured."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.document import middle, select, speedups, values

Record = dict[str, Any]


def print_report(console: Console, document: Record) -> None:
    limits = document["limits"]
    for workload, described in document["workloads"].items():
        for figure in described["figures"]:
            console.print(make_table(document, workload, figure))
    console.print(
        f"{document['model']}, {document['threads']} threads, lengths × {document['scale']:g}; floors from "
        f"{limits['product_gflop_s']:.0f} GFLOP/s of float32 products and {limits['memory_read_gb_s']:.0f} GB/s of "
        "reads, measured in this run"
    )
    if document["interrupted"]:
        console.print("interrupted: this is what there was")


def make_table(document: Record, workload: str, figure: Record) -> Table:
    """A row for each engine that was measured; ratios to those above it."""
    described, engines = document["workloads"][workload], list(document["engines"])
    floor = format_floor(described["floors"], figure["key"])
    title = f"{workload}: {figure['label']} of {described['what']}{floor}"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("engine", no_wrap=True)
    for name in ("median", "from - to", *(f"× {short(other)}" for other in engines[:-1]), "own cost", "agrees"):
        table.add_column(name, justify="right", no_wrap=name in ("median", "from - to"))
    for i, engine in enumerate(engines):
        records = select(document, workload, engine)
        if found := values(records, figure["key"]):
            ratios = [format_ratio(document, workload, figure, engine, other) for other in engines[:i]]
            ratios += [""] * (len(engines) - 1 - i)
            cells = [engine, format_value(middle(found)), format_range(found), *ratios[: len(engines) - 1]]
            table.add_row(*cells, own_cost(records), agreement(records))
    return table


def short(engine: str) -> str:
    """As a column's head: the rows say the whole name."""
    return engine.partition(":")[2] if not engine.startswith("minipaged:") else engine.replace("minipaged:", "level ")


def format_ratio(document: Record, workload: str, figure: Record, ours: str, theirs: str) -> str:
    both = select(document, workload, ours), select(document, workload, theirs)
    return format_value(middle(speedups(*both, figure["key"], less_is_better=figure["less_is_better"])))


def own_cost(records: list[Record]) -> str:
    found = middle(values(records, "own_cost"))
    return "" if found is None else f"{found:.1%}"


def agreement(records: list[Record]) -> str:
    """The share of tokens before the first difference from the first engine."""
    found = middle(values((r["agreement"] for r in records if r["agreement"]), "equal_tokens"))
    return "" if found is None else f"{100 * found:.3g}%"


def format_floor(floors: dict[str, float], key: str) -> str:
    if key not in floors:
        return ""
    shared = floors.get("shared") if key == "output_tokens_per_s" else None
    return f" (floor {format_value(floors[key])}{f', {format_value(shared)} with sharing' if shared else ''})"


def format_value(value: float | None) -> str:
    """Three digits: more than a shared machine can promise."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_range(found: list[float]) -> str:
    return f"{format_value(min(found))} - {format_value(max(found))}"
