"""A run, as it happens: a row for each request, the pool as a map, tokens per second.

     3 ▒▒▒▒▒▒▒▒▒▒▓▓▓▓······  writing 24/64          ▒ prompt read, ▓ written, · still to come
    ■■■■■□■■■■■■■□■■■□·····························  ■ holds keys and values, □ reserved in vain, · free

On a terminal the picture is redrawn a few times a second; elsewhere a plain line is printed every five. It goes to
stderr, so that nothing but results goes to stdout. What does not fit is counted: requests that run are shown before
those that wait, and of a large pool the beginning. Invariant: it only looks on, between steps. (From level 01.)"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .driver import OnStep, Record, Run
from .outputs import RequestOutput
from .sequence import Sequence

COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta", "bright_yellow")
REDRAW_S, LINE_S = 0.15, 5.0
BAR, CELL_SLOTS, MAX_ROWS, MAX_CELLS = 32, 16, 16, 480
NUM_OTHER_LINES = 4  # title, "and 7 more", status, and the cursor's


@contextmanager
def watch(console: Console, title: str) -> Iterator[OnStep]:
    """The observer for a run: `with watch(console, title) as on_step: run.go(on_step)`."""
    if not console.is_terminal or console.is_dumb_terminal:
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
            line = f"{self.title}: {num_done} of {len(run.records)} done, {status(run)}"
            self.console.print(Text(line), soft_wrap=True)


class Picture:
    """Requests, pool and numbers, redrawn in place."""

    def __init__(self, live: Live, title: str):
        self.live, self.title, self.next_redraw = live, title, 0.0

    def __call__(self, run: Run, outputs: list[RequestOutput]) -> None:
        if time.perf_counter() >= self.next_redraw or not run.live:
            self.live.update(draw(run, self.title, *self.live.console.size), refresh=True)
            self.next_redraw = time.perf_counter() + REDRAW_S


def draw(run: Run, title: str, width: int, height: int) -> Group:
    """No higher than `height` lines: the pool takes at most a third of them, the requests the rest."""
    pool = draw_pool(run, max(0, min(MAX_CELLS, max(1, height // 3) * width - len(" and 99,999 more"))))
    pool_height = -(-max(1, pool.cell_len) // width)
    rows = draw_rows(run, max(1, min(MAX_ROWS, height - pool_height - NUM_OTHER_LINES)))
    hidden = len(run.records) - len(rows)
    more = [Text(f"     and {hidden:,} more", style="dim")] if hidden else []
    lines = [Text(title, style="bold"), *rows, *more, Text(status(run))]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines[:-1], pool, lines[-1])


def draw_rows(run: Run, num_rows: int) -> list[Text]:
    """Who runs, then who waits, then who is done; the chosen ones in the order given."""
    ranked = sorted(run.engine.holders, key=lambda seq: seq.num_computed_tokens)
    running = {seq.request_id: seq for seq in ranked}  # of several choices, the one that has come furthest

    def rank(i: int) -> tuple[bool, bool]:
        return is_done(run.records[i]), run.records[i].request_id not in running

    chosen = sorted(sorted(range(len(run.records)), key=rank)[:num_rows])
    return [draw_row(i, run.records[i], running.get(run.records[i].request_id or "")) for i in chosen]


def is_done(record: Record) -> bool:
    return record.output is not None and record.output.finished


def status(run: Run) -> str:
    """Where the run stands, in one line."""
    steps, now = run.engine.trace.steps, run.now()
    num_tokens = sum(record.num_tokens for record in run.records)
    last = steps[-1] if steps else None
    pool = f", {last.num_running} running, {last.num_waiting} waiting" if last else ""
    free = f", {last.num_free_blocks} of {last.num_blocks} blocks free" if last else ""
    return f"step {run.num_steps}, {num_tokens} tokens, {num_tokens / max(now, 1e-9):.0f} tokens/s{pool}{free}"


def draw_row(index: int, record: Record, seq: Sequence | None) -> Text:
    color, n = COLORS[index % len(COLORS)], len(record.request.prompt_token_ids)
    num_written, params = record.num_tokens, record.request.params
    goal = params.max_tokens * params.n if params.max_tokens else num_written
    num_read = n if is_done(record) else min(seq.num_computed_tokens, n) if seq else 0
    read, filled = (round(BAR * part / (n + goal)) for part in (num_read, num_read + num_written))
    bar = "▒" * read + "▓" * (filled - read)
    state = describe(record, seq, num_read, num_written, goal)
    return Text.assemble((f"{index:>4} ", "dim"), (bar, color), ("·" * (BAR - len(bar)), "dim"), f"  {state}")


def describe(record: Record, seq: Sequence | None, num_read: int, num_written: int, goal: int) -> str:
    if is_done(record) and record.output:
        reasons = dict.fromkeys(said.finish_reason or "" for said in record.output.outputs)  # each once
        return f"{', '.join(reasons)}, {num_written} tokens"
    if seq is None:
        return f"preempted, {num_written} tokens" if num_written else "waiting"
    n = len(record.request.prompt_token_ids)
    return f"reading {num_read}/{n}" if num_read < n else f"writing {num_written}/{goal}"


def draw_pool(run: Run, max_cells: int) -> Text:
    """The pool's first cells, of up to CELL_SLOTS slots each."""
    size = run.engine.trace.block_size
    cells_per_block = -(-size // CELL_SLOTS)
    cells: dict[int, tuple[str, str]] = {}
    for seq in run.engine.holders:
        color = COLORS[int(seq.request_id) % len(COLORS)] if seq.request_id.isdecimal() else "white"
        for i, block in enumerate(seq.block_table):
            first = block * cells_per_block
            for cell in range(first, min(first + cells_per_block, max_cells)):
                start = i * size + (cell - first) * CELL_SLOTS
                symbol = "▣" if cell in cells else "■" if start < seq.num_computed_tokens else "□"
                cells[cell] = (symbol, "bold white" if cell in cells else color)
    num_blocks = run.engine.trace.steps[-1].num_blocks if run.engine.trace.steps else 0
    total = num_blocks * cells_per_block
    shown = groupby(cells.get(cell, ("·", "dim")) for cell in range(min(total, max_cells)))
    text = Text.assemble(*((symbol * len(list(equals)), color) for (symbol, color), equals in shown))
    return text.append(f" and {total - max_cells:,} more", style="dim") if total > max_cells else text
