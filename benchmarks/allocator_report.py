"""The tables after a run of the allocator: microseconds a block by the pool's size, and how many times those of ours.

    adopt new, µs a block: a request of 257 tokens that nobody has read, 17 blocks
    blocks                        1,000             10,000     ...     last / first
    minipaged:sha256   2.45 (2.40-2.50)   2.47 (2.41-2.49)                     1.10
    vllm:sha256        5.40 (5.32-5.56)   5.38 (5.35-5.60)                     1.21
      × ours                       2.21               2.18

Ours is the one of the same kind. Medians and ranges of repetitions; a ratio is the median of the ratios within single
repetitions. Everything here is read from the document, never measured."""

from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.document import middle
from benchmarks.managers import is_plain

Record = dict[str, Any]
Read = Callable[[Record], float]


def print_report(console: Console, document: Record) -> None:
    for key, operation in document["operations"].items():
        title = f"{key}, µs a block: {operation['what']}"
        console.print(make_table(document, title, read_operation(key)))
    console.print(
        make_table(
            document,
            "fill, µs a block: the mean of all its adopts and releases",
            lambda record: record["fill_ns_per_block"] / 1e3,
        )
    )
    console.print(
        make_table(document, "fill, ms: the longest of its adopts and releases", lambda record: record["longest_ms"])
    )
    console.print(describe_managers(document["managers"]))
    if document["interrupted"]:
        console.print("interrupted: this is what there was")


def read_operation(key: str) -> Read:
    return lambda record: record["ns_per_block"][key] / 1e3


def make_table(document: Record, title: str, read: Read) -> Table:
    pools, managers = document["pools"], list(document["managers"])
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("blocks", no_wrap=True)
    for name in (*(f"{pool:,}" for pool in pools), "last / first"):
        table.add_column(name, justify="right", no_wrap=True)
    for manager in managers:
        found = {pool: select(document, manager, pool, read) for pool in pools}
        growth = format_value(middle(ratios(found[pools[-1]], found[pools[0]])))
        table.add_row(manager, *(format_cell(list(found[pool].values())) for pool in pools), growth)
        if ours := counterpart(manager, managers):
            both = [ratios(found[pool], select(document, ours, pool, read)) for pool in pools]
            table.add_row("  × ours", *(format_value(middle(found)) for found in both), "", style="dim")
    return table


def select(document: Record, manager: str, num_blocks: int, read: Read) -> dict[int, float]:
    """By repetition."""
    found = document["repetitions"]
    return {r["repetition"]: read(r) for r in found if r["manager"] == manager and r["num_blocks"] == num_blocks}


def ratios(above: dict[int, float], below: dict[int, float]) -> list[float]:
    return [above[i] / below[i] for i in above if below.get(i)]


def counterpart(manager: str, managers: list[str]) -> str | None:
    """Ours of the same kind; none for one of ours."""
    same = [name for name in managers if name.startswith("minipaged") and is_plain(name) == is_plain(manager)]
    return same[0] if same and not manager.startswith("minipaged") else None


def format_cell(found: list[float]) -> str:
    spread = f" ({format_value(min(found))}-{format_value(max(found))})" if len(found) > 1 else ""
    return f"{format_value(middle(found))}{spread}"


def format_value(value: float | None) -> str:
    """Three digits or two decimals: more than a shared machine can promise."""
    return "" if value is None else f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def describe_managers(managers: dict[str, Record]) -> str:
    """Which versions these were, and why vLLM is missing if it is."""
    versions = {f"{name.partition(':')[0]} {s['version']} on Python {s['python']}" for name, s in managers.items()}
    if any(name.startswith("vllm") for name in managers):
        return ", ".join(sorted(versions))
    return (
        f"{', '.join(sorted(versions))}; vLLM was not measured, for want of --vllm-python (--help says how to get one)"
    )
