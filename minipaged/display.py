"""A run, as it happens: a row for each request, the pool as a map, tokens per second.

    r3  ▒▒▒▒▒▒▒▒▒▒▓▓▓▓······  writing 24/64         ▒ prompt read, ▓ written, · still to come
    ■■■■■□■■■■■■■□■■■□·····························  ■ holds keys and values, □ reserved in vain, · free

On a terminal the picture is redrawn a few times a second; elsewhere a plain line is printed every five. Invariant: it
only looks on, and never from inside a step. (From level 01.)"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .driver import OnStep, Record, Run
from .outputs import RequestOutput
from .sequence import Sequence

COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta", "bright_yellow")
REDRAW_S, LINE_S = 0.15, 5.0
BAR, CELL_SLOTS, MAX_ROWS, MAX_CELLS = 32, 16, 16, 480


@contextmanager
def watch(console: Console, title: str) -> Iterator[OnStep]:
    """The observer for a run: `with watch(console, title) as on_step: run.go(on_step)`."""
    if not console.is_terminal:
        yield PlainLines(console, title)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Picture(live, title)


class PlainLines:
    """A line every five seconds."""

    def __init__(self, console: Console, title: str):
        self.console, self.title, self.next_line = console, title, time.perf_counter() + LINE_S

    def __call__(self, run: Run, outputs: list[RequestOutput]) -> None:
        if time.perf_counter() >= self.next_line:
            self.next_line = time.perf_counter() + LINE_S
            num_done = sum(is_done(record) for record in run.records)
            head = f"{self.title}: {num_done} of {len(run.records)} done, "
            self.console.print(head + status(run), highlight=False, soft_wrap=True)


class Picture:
    """Requests, pool and numbers, redrawn in place."""

    def __init__(self, live: Live, title: str):
        self.live, self.title, self.next_redraw = live, title, 0.0

    def __call__(self, run: Run, outputs: list[RequestOutput]) -> None:
        if time.perf_counter() >= self.next_redraw or not run.live:
            self.next_redraw = time.perf_counter() + REDRAW_S
            self.live.update(self.draw(run), refresh=True)

    def draw(self, run: Run) -> Group:
        running = {seq.request_id: seq for seq in run.engine.holders}
        shown = sorted(enumerate(run.records), key=lambda item: is_done(item[1]))[:MAX_ROWS]
        rows = [draw_row(i, record, running.get(record.request_id or "")) for i, record in sorted(shown, key=first)]
        hidden = len(run.records) - len(rows)
        more = [Text(f"     and {hidden} more", style="dim")] if hidden else []
        return Group(Text(self.title, style="bold"), *rows, *more, draw_pool(run), Text(status(run)))


def first(item: tuple[int, Record]) -> int:
    return item[0]


def is_done(record: Record) -> bool:
    return record.output is not None and record.output.finished


def status(run: Run) -> str:
    """Where the run stands, in one line."""
    steps, now = run.engine.trace.steps, run.now()
    num_tokens = sum(len(record.token_times) for record in run.records)
    last = steps[-1] if steps else None
    pool = f", {last.num_running} running, {last.num_waiting} waiting" if last else ""
    free = f", {last.num_free_blocks} of {last.num_blocks} blocks free" if last else ""
    return f"step {run.num_steps}, {num_tokens} tokens, {num_tokens / max(now, 1e-9):.0f} tokens/s{pool}{free}"


def draw_row(index: int, record: Record, seq: Sequence | None) -> Text:
    color, n = COLORS[index % len(COLORS)], len(record.request.prompt_token_ids)
    num_written = len(record.token_times)
    goal = record.request.params.max_tokens or num_written
    num_read = n if is_done(record) else min(seq.num_computed_tokens, n) if seq else 0
    read, written = (round(BAR * part / (n + goal)) for part in (num_read, num_written))
    bar = "▒" * read + "▓" * written
    state = describe(record, seq, num_read, num_written, goal)
    return Text.assemble((f"{index:>4} ", "dim"), (bar, color), ("·" * (BAR - len(bar)), "dim"), f"  {state}")


def describe(record: Record, seq: Sequence | None, num_read: int, num_written: int, goal: int) -> str:
    if is_done(record) and record.output:
        return f"{record.output.outputs[0].finish_reason}, {num_written} tokens"
    if seq is None:
        return f"gave way with {num_written} tokens" if num_written else "waiting"
    n = len(record.request.prompt_token_ids)
    return f"reading {num_read}/{n}" if num_read < n else f"writing {num_written}/{goal}"


def draw_pool(run: Run) -> Text:
    """The pool's cells, up to CELL_SLOTS slots each; a large pool is shown by its beginning."""
    size = run.engine.trace.block_size
    cells_per_block = -(-size // CELL_SLOTS)
    cells: dict[int, tuple[str, str]] = {}
    for seq in run.engine.holders:
        color = COLORS[int(seq.request_id) % len(COLORS)] if seq.request_id.isdigit() else "white"
        for cell, symbol in held_cells(seq, size, cells_per_block):
            cells[cell] = (symbol, color)
    num_blocks = run.engine.trace.steps[-1].num_blocks if run.engine.trace.steps else 0
    total = num_blocks * cells_per_block
    text = Text.assemble(*(cells.get(cell, ("·", "dim")) for cell in range(min(total, MAX_CELLS))))
    return text.append(f" and {total - MAX_CELLS} more", style="dim") if total > MAX_CELLS else text


def held_cells(seq: Sequence, block_size: int, cells_per_block: int) -> Iterator[tuple[int, str]]:
    """(cell, symbol) of everything seq holds."""
    for i, block in enumerate(islice(seq.block_table, MAX_CELLS)):
        for cell in range(cells_per_block):
            start = i * block_size + cell * CELL_SLOTS
            yield block * cells_per_block + cell, "■" if start < seq.num_computed_tokens else "□"
