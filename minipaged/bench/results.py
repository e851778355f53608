"""A document for programs, a table for people, a picture for both to argue about; the first is the source of the rest.

    request rate   output tokens/s   goodput/s   ttft p50   ttft p99   tpot p50   e2e p99   failed

Invariant: table and picture say nothing that is not in the document. (From level 08.)"""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..cli import write_json
from .figures import Figures

FILE_WIDTH = 160  # of a table where nobody says how wide it may be
COLUMNS: dict[str, Callable[[Figures], str]] = {
    "setting": lambda run: name(run),
    "output tokens/s": lambda run: f"{run['output_tokens_per_s']:.1f}",
    "goodput, requests/s": lambda run: f"{run['goodput_requests_per_s']:.2f}",
    "ttft p50": lambda run: seconds(run["ttft_s"]["p50"]),
    "ttft p99": lambda run: seconds(run["ttft_s"]["p99"]),
    "tpot p50": lambda run: seconds(run["tpot_s"]["p50"]),
    "itl p99": lambda run: seconds(run["itl_s"]["p99"]),
    "e2e p50": lambda run: seconds(run["e2e_s"]["p50"]),
    "failed": lambda run: str(run["failed"]),
}


def name(run: Figures) -> str:
    """What was varied: a rate, or settings of the engine."""
    if "engine" in run:
        return ", ".join(f"{key} {value}" for key, value in run["engine"].items())
    rate = run.get("request_rate")
    return "all at once" if rate is None else f"{rate:g} requests/s"


def seconds(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def publish(document: dict[str, Any], args: Namespace) -> None:
    if args.json is not None:
        write_json(document, args.json)
    if args.plot is not None:
        draw(document["runs"], Path(args.plot))
    if args.json != "-":
        console = Console(highlight=False)
        console.width = console.width if console.is_terminal else FILE_WIDTH
        console.print(make_table(document["runs"]))


def make_table(runs: list[Figures]) -> Table:
    table = Table(box=None, header_style="dim")
    for title in COLUMNS:
        table.add_column(title, justify="left" if title == "setting" else "right")
    for run in runs:
        table.add_row(*(show(run) for show in COLUMNS.values()))
    return table


def draw(runs: list[Figures], path: Path) -> None:
    """Three panels over what was varied: throughput and goodput, time to the first token, time between tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    labels = [name(run).replace(", ", "\n") for run in runs]
    for key, text in (("requests_per_s", "served"), ("goodput_requests_per_s", "served in time")):
        left.plot(labels, [run[key] for run in runs], marker="o", label=text)
    left.set_title("requests/s", fontsize=9)
    for axes, key, title in ((middle, "ttft_s", "first token after, s"), (right, "itl_s", "between outputs, s")):
        for share in ("p50", "p99"):
            axes.plot(labels, [run[key][share] for run in runs], marker="o", label=share)
        axes.set_title(title, fontsize=9)
    for axes in (left, middle, right):
        axes.legend(fontsize=8, frameon=False)
        axes.tick_params(labelsize=7)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
