"""What an engine did, drawn: memory as boxes, time as rows, speed as a roof.

    block_map    | A0 | A1 | .. | B0 |      timeline     A |5 1 1 1|        waterfall   A |waits|reads|writes writes|
                   who holds what                        B |  4 1 1|                    B       |reads|writes|
                                                           steps                        seconds
    waste_over_time    reserved and used slots, step by step        roofline    FLOP/s over FLOP/byte, under the roof
    spent              seconds by kind of work, and the floors under them

Every function takes real objects or the documents that --json and --trace write, and returns a Figure (`quote` alone
returns text: source code, as it is now). Colours are
Okabe and Ito's, which the colour-blind can tell apart, and never the only sign: there is a name, a hatch or a number
beside each. Figures bring their own light ground, so that they can be read on a dark page. Units are on the axes.
Invariant: nothing is computed here that is not in what was given. (For levels 01 to 05.)"""

from collections.abc import Mapping, Sequence
from inspect import getsource, getsourcefile
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .sequence import Sequence as TokenSequence
from .trace import StepRecord, kv_usage

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
COLORS = ("#0072B2", "#E69F00", "#009E73", "#F0E442", "#D55E00", "#56B4E9", "#CC79A7", "#8c8c8c")  # Okabe and Ito 2008
GROUND, INK, FAINT, EMPTY = "#ffffff", "#222222", "#999999", "#eeeeee"
WAITS, READS, WRITES = "#dddddd", COLORS[1], COLORS[0]
MAX_NUMBERED = 40  # columns: with more, a number would not fit its cell


class Point(NamedTuple):
    """A piece of work under a roof: what it computes, what it moves, and how long that took."""

    flop: float
    bytes: float
    seconds: float


class Quote(NamedTuple):
    """Source code for a notebook to show."""

    text: str

    def _repr_markdown_(self) -> str:
        return self.text


def quote(thing: Any) -> Quote:
    """A function's or class's source as it is now, below the file that it stands in."""
    thing = getattr(thing, "fn", thing)  # a Triton kernel keeps its function there
    path = Path(getsourcefile(thing) or "").resolve().relative_to(ROOT)
    return Quote(f"`{path}`\n\n```python\n{getsource(thing)}```")


def new_figure(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=GROUND)
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def show_legend(axes: Axes, *entries: tuple[str, str]) -> None:
    patches = [Patch(facecolor=color, edgecolor=INK, linewidth=0.5, label=label) for label, color in entries]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=6, fontsize=8, frameon=False)


def block_map(holders: Sequence[TokenSequence], num_blocks: int, block_size: int, columns: int = 16) -> Figure:
    """The pool: each block with its number and its holder's name, filled as far as its slots are used.

    A block that several hold is hatched. At level 01 a block is a row of max_model_len slots: columns=1."""
    columns = min(columns, num_blocks)
    num_rows = ceil(num_blocks / columns)
    title = f"{num_blocks} blocks of {block_size} slots; colour: keys and values, grey: reserved, white: free"
    figure, axes = new_figure(9, 0.7 + 0.45 * num_rows, title)
    users: dict[int, list[tuple[int, TokenSequence]]] = {}
    for seq in holders:
        for i, block in enumerate(seq.block_table):
            users.setdefault(block, []).append((i, seq))
    colors = {seq: COLORS[i % len(COLORS)] for i, seq in enumerate(holders)}
    for block in range(num_blocks):
        x, y = block % columns, block // columns
        draw_block(axes, (x, y), block, users.get(block, []), block_size, colors)
    axes.set(xlim=(0, columns), ylim=(num_rows, 0), xticks=[], yticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)
    return figure


def draw_block(
    axes: Axes,
    place: tuple[int, int],
    block: int,
    users: list[tuple[int, TokenSequence]],
    size: int,
    colors: Mapping[TokenSequence, str],
) -> None:
    x, y = place
    axes.add_patch(Rectangle((x, y + 0.05), 0.96, 0.9, facecolor=EMPTY if users else GROUND, edgecolor=FAINT))
    if users:
        i, seq = users[0]
        share = min(1.0, max(0.0, seq.num_computed_tokens - i * size) / size)
        hatch = "///" if len(users) > 1 else None
        axes.add_patch(Rectangle((x, y + 0.05), 0.96 * share, 0.9, facecolor=colors[seq], edgecolor=INK, hatch=hatch))
    names = " ".join(dict.fromkeys(seq.request_id for _, seq in users))
    label: dict[str, Any] = {"fontsize": 7, "color": INK, "va": "center", "clip_on": True}
    ground = {"facecolor": GROUND, "edgecolor": "none", "pad": 1, "alpha": 0.8}
    axes.text(x + 0.05, y + 0.24, str(block), bbox=ground, **label | {"fontsize": 5})
    if names:
        axes.text(
            x + 0.48, y + 0.55, names if len(names) < 9 else f"{len(users)} hold it", ha="center", bbox=ground, **label
        )


def timeline(trace: Json, title: str = "tokens that each request ran in each step") -> Figure:
    """A row a request, a column a step: how many tokens it ran, how many of them were right guesses."""
    steps = trace["steps"]
    names = list(dict.fromkeys(name for step in steps for name in [*step["num_scheduled_tokens"], *step["admitted"]]))
    figure, axes = new_figure(min(14.0, max(8.0, 2 + 0.32 * len(steps))), 1.6 + 0.3 * len(names), title)
    for x, step in enumerate(steps):
        for name, num_tokens in step["num_scheduled_tokens"].items():
            draw_share(axes, (x, names.index(name)), step, name, num_tokens, len(steps) <= MAX_NUMBERED)
        for name in step["preempted"]:
            axes.text(x + 0.5, names.index(name) + 0.5, "×", ha="center", va="center", color=COLORS[4], fontsize=11)
        for name in step["finished"]:
            axes.plot([x + 1, x + 1], [names.index(name) + 0.1, names.index(name) + 0.9], color=INK, linewidth=2)
    axes.set(xlim=(0, len(steps)), ylim=(len(names), 0), xlabel="step", ylabel="request")
    axes.set_yticks([y + 0.5 for y in range(len(names))], names)
    legend = [("reads several tokens", READS), ("writes: one token, or one and its guesses", WRITES)]
    show_legend(axes, *legend, ("× gave way    | ended", GROUND))
    return figure


def draw_share(axes: Axes, place: tuple[int, int], step: Json, name: str, num_tokens: int, numbered: bool) -> None:
    x, y = place
    num_drafts = step["draft_tokens"].get(name, 0)
    color = WRITES if num_tokens - num_drafts == 1 else READS
    axes.add_patch(Rectangle((x, y + 0.08), 0.96, 0.84, facecolor=color, edgecolor="none"))
    if numbered:
        right = f"\n{step['accepted_tokens'][name]}/{num_drafts}" if num_drafts else ""
        ink = GROUND if color == WRITES else INK
        axes.text(x + 0.48, y + 0.5, f"{num_tokens}{right}", ha="center", va="center", fontsize=7, color=ink)


def waterfall(document: Json, trace: Json, title: str = "from its arrival to its last word") -> Figure:
    """A row a request, all arriving at 0: how long it waited, read its prompt and wrote. Times in seconds."""
    requests = document["requests"]
    figure, axes = new_figure(9, 1.5 + 0.28 * len(requests), title)
    admitted = {name: step["t_s"] for step in reversed(trace["steps"]) for name in step["admitted"]}
    for y, request in enumerate(requests):
        moments = [0.0, admitted.get(str(request["index"])), request["ttft_s"], request["latency_s"]]
        known = [moment for moment in moments if moment is not None]  # whoever was aborted has no more
        for left, right, color in zip(known, known[1:], (WAITS, READS, WRITES), strict=False):
            axes.barh(y, max(0.0, right - left), left=left, color=color, edgecolor=GROUND, height=0.8)
    axes.set(xlabel="seconds since the start", ylabel="request", ylim=(len(requests) - 0.5, -0.5))
    axes.set_yticks(range(len(requests)), [str(request["index"]) for request in requests])
    show_legend(axes, ("waits", WAITS), ("reads its prompt", READS), ("writes", WRITES))
    return figure


def waste_over_time(runs: Mapping[str, Sequence[StepRecord]]) -> Figure:
    """A panel a run: slots reserved and slots used in each step; what lies between is waste."""
    figure = Figure(figsize=(1 + 4 * len(runs), 3.2), layout="constrained", facecolor=GROUND)
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axes, (name, steps) in zip(panels, runs.items(), strict=True):
        x = range(len(steps))
        reserved, used = [step.reserved_slots for step in steps], [step.used_slots for step in steps]
        axes.fill_between(x, used, reserved, color=COLORS[4], alpha=0.35, hatch="///", label="reserved, not used")
        axes.fill_between(x, used, color=COLORS[0], alpha=0.8, label="keys and values")
        waste = kv_usage(steps)["waste"]
        axes.set_title(f"{name}: {waste or 0:.0%} in vain", loc="left", fontsize=10, color=INK)
        axes.set(xlabel="step", ylabel="slots")
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def roofline(points: Mapping[str, Point], flop_s: float, bytes_s: float) -> Figure:
    """Each piece of work under what the machine can do: flop_s at most, and bytes_s times the FLOP a byte."""
    figure, axes = new_figure(7, 4.2, "what was reached, and the roof: whichever of memory and arithmetic is slower")
    intensities = [point.flop / point.bytes for point in points.values()]
    ridge = flop_s / bytes_s
    x = [min([*intensities, ridge]) / 3, ridge, max([*intensities, ridge]) * 3]
    axes.plot(x, [min(flop_s, bytes_s * each) / 1e9 for each in x], color=INK, linewidth=2)
    axes.text(x[0], bytes_s * x[0] * 1.6 / 1e9, f" {bytes_s / 1e9:.0f} GB/s", fontsize=8, color=INK)
    axes.text(x[2], flop_s * 1.1 / 1e9, f"{flop_s / 1e9:.0f} GFLOP/s ", fontsize=8, color=INK, ha="right")
    for i, (name, point) in enumerate(points.items()):
        at = point.flop / point.bytes, point.flop / point.seconds / 1e9
        axes.plot(*at, "osD^vPX*"[i % 8], color=COLORS[i % len(COLORS)], markeredgecolor=INK, label=name)
    axes.set(xscale="log", yscale="log", xlabel="FLOP for each byte that is moved", ylabel="GFLOP/s")
    axes.legend(fontsize=8, frameon=False)
    return figure


def spent(seconds: Mapping[str, float], floors: Mapping[str, float], title: str) -> Figure:
    """A bar for each kind of work, and below which it cannot get, where a floor is known."""
    figure, axes = new_figure(7.5, 1.0 + 0.36 * len(seconds), title)
    whole = sum(seconds.values())
    for y, (name, value) in enumerate(seconds.items()):
        axes.barh(y, value, height=0.62, color=COLORS[5])
        floor = floors.get(name)
        told = "" if not floor else f", {value / floor:.1f} × its floor"
        if floor:
            axes.barh(y, floor, height=0.62, facecolor="none", edgecolor=INK, hatch="////", linewidth=0.8)
        axes.text(value, y, f"  {value:.2f} s, {value / whole:.1%}{told}", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(seconds)), list(seconds))
    axes.set(xlabel="seconds", ylim=(len(seconds) - 0.4, -0.6))
    axes.margins(x=0.42)
    hatched = Patch(facecolor="none", edgecolor=INK, hatch="////", label="floor: what its operations or bytes take")
    axes.legend(handles=[hatched], loc="lower right", fontsize=8, frameon=False)
    return figure
