"""What several processes did, drawn: who holds which part, when each worked, what it was asked, how long people waited.

    holdings       heads |r2|r2|r5|r5|      stages     stage 0 |███ ███ ███ |      histogram   |  ▅█▃
                         |r0|r0|r3|r3|                 stage 1 |  ███ ███ ██|                  |  ███▅▂▁   p99
                          layers                        seconds                                 seconds
    count_map      rows x columns, a number in each cell          rank_load      each rank's rows, before and after

Like viz.py's, every function takes real objects or documents and returns a Figure; colours are never the only sign.
Invariant: nothing is computed here that is not in what was given. (For levels 06 to 08.)"""

from collections.abc import Mapping, Sequence
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .bench.figures import quantile
from .parallel.balance import Balance, spread
from .parallel.portion import Portion
from .timeline import Stage, Window, busy_share, common_window, middle
from .viz import COLORS, EMPTY, GROUND, INK, new_figure

SHADES = "Blues"
NUM_SHOWN = 8  # batches of a stage, in a picture of its pipeline
NUM_BINS = 24


def new_panels(names: Sequence[str], width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * len(names), height), layout="constrained", facecolor=GROUND)
    panels = list(figure.subplots(1, len(names), squeeze=False)[0])
    for axes, name in zip(panels, names, strict=True):
        axes.set_title(name, loc="left", fontsize=10, color=INK)
        axes.tick_params(labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def holdings(splits: Mapping[str, Sequence[Portion]]) -> Figure:
    """A panel a way to split: layers from left to right, query heads upwards, each rank's rectangle with its name."""
    figure, panels = new_panels(list(splits), 3.2, 3.0)
    for axes, portions in zip(panels, splits.values(), strict=True):
        for rank, (layers, heads, *_) in enumerate(portions):
            color = COLORS[rank % len(COLORS)]
            box = Rectangle((layers.start, heads.start), len(layers), len(heads), facecolor=color, edgecolor=GROUND)
            axes.add_patch(box)
            place = layers.start + len(layers) / 2, heads.start + len(heads) / 2
            ground = {"facecolor": GROUND, "edgecolor": "none", "pad": 2, "alpha": 0.85}
            axes.text(*place, f"rank {rank}", ha="center", va="center", fontsize=8, color=INK, bbox=ground)
        ends = [(portion.layers.stop, portion.heads.stop) for portion in portions]
        axes.set(xlim=(0, max(end for end, _ in ends)), ylim=(0, max(end for _, end in ends)))
        axes.set(xlabel="layer", ylabel="query head")
    return figure


def stages(runs: Mapping[str, Sequence[Stage]]) -> Figure:
    """A panel a run: a row for each stage, a bar for each batch from its beginning to its end, in seconds."""
    names = []
    for name, run in runs.items():
        names.append(f"{name}: stages work {busy_share(run, common_window(run)):.0%} of the time")
    figure = Figure(figsize=(10, 0.6 + 1.1 * len(runs)), layout="constrained", facecolor=GROUND)
    panels = figure.subplots(len(runs), 1, squeeze=False)[:, 0]
    for axes, name, run in zip(panels, names, runs.values(), strict=True):
        window = common_window(run)
        draw_stages(axes, run, middle(window, NUM_SHOWN * window.length_s / len(run[0])))
        axes.set_title(name, loc="left", fontsize=10, color=INK)
    panels[-1].set_xlabel("seconds")
    return figure


def draw_stages(axes: Axes, run: Sequence[Stage], window: Window) -> None:
    for number, stage in enumerate(run):
        for i, (start, end) in enumerate(stage):
            color = COLORS[i % 2 * 5]  # two blues, a dark and a light one, by turns: where a batch ends, in any eye
            axes.barh(number, end - start, left=start - window.start_s, color=color, edgecolor=GROUND, height=0.8)
    axes.set(xlim=(0, window.length_s), ylim=(len(run) - 0.5, -0.5))
    axes.set_yticks(range(len(run)), [f"stage {number}" for number in range(len(run))])
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


def count_map(counts: Mapping[str, Sequence[Sequence[int]]], rows: str, columns: str) -> Figure:
    """A panel an entry: counts[name][row][column], the larger the darker, each with its number."""
    sizes = [(len(table), len(table[0])) for table in counts.values()]
    height, width = max(size[0] for size in sizes), max(size[1] for size in sizes)
    figure, panels = new_panels(list(counts), max(3.0, 0.5 * width + 1.2), 1.2 + 0.32 * height)
    for axes, table in zip(panels, counts.values(), strict=True):
        most = max(1, *(max(row) for row in table))
        axes.imshow(table, cmap=SHADES, vmin=0, vmax=1.6 * most, aspect="auto")  # light enough for dark numbers
        for y, row in enumerate(table):
            for x, number in enumerate(row):
                axes.text(x, y, f"{number:,}", ha="center", va="center", fontsize=8, color=INK)
        axes.set(xlabel=columns, ylabel=rows, xticks=range(len(table[0])), yticks=range(len(table)))
        axes.spines[["left", "bottom"]].set_visible(False)
    return figure


def rank_load(balances: Sequence[Balance]) -> Figure:
    """A panel a layer: rows that each rank's experts were asked, and what a plan makes of the same rows."""
    names = [f"layer {i}: balance {each.before:.2f}, then {each.after:.2f}" for i, each in enumerate(balances)]
    figure, panels = new_panels(names, 3.2, 2.8)
    for axes, balance in zip(panels, balances, strict=True):
        kinds = (("as it was", -0.2, balance.old, COLORS[1], "//"), ("as planned", 0.2, balance.new, COLORS[0], ""))
        for label, shift, placement, color, hatch in kinds:
            loads = spread(balance.load, placement)
            places = [rank + shift for rank in range(len(loads))]
            axes.bar(places, loads, width=0.38, color=color, hatch=hatch, edgecolor=GROUND, label=label)
        axes.axhline(sum(balance.load) / len(balance.old), color=INK, linewidth=1, linestyle=":", label="the mean")
        axes.set(xticks=range(len(balance.old)), xlabel="rank", ylabel="rows")
    known = panels[0].get_legend_handles_labels()
    figure.legend(*known, loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure


def histogram(samples: Mapping[str, Sequence[float]], title: str) -> Figure:
    """A panel a kind of waiting, in seconds: how many waited so long; lines where half and 99 of 100 were done."""
    figure, panels = new_panels([f"{title}, {name}" for name in samples], 4.5, 2.8)
    for axes, values in zip(panels, samples.values(), strict=True):
        ordered = sorted(values)
        axes.hist(ordered, bins=min(NUM_BINS, ceil(len(ordered) ** 0.5) + 2), color=COLORS[5], edgecolor=GROUND)
        for share, style in ((0.5, "-"), (0.99, "--")):
            value = quantile(ordered, share) or 0.0
            axes.axvline(value, color=INK, linestyle=style, linewidth=1.2, label=f"p{share * 100:.0f} {value:.3g} s")
        axes.set(xlabel="seconds", ylabel="how many", facecolor=GROUND, xlim=(0, None))
        axes.legend(fontsize=8, frameon=False)
    return figure


def moments(rows: Mapping[str, Sequence[float]], title: str) -> Figure:
    """A row each: when something was heard, as ticks, in seconds since the start."""
    figure, axes = new_figure(9, 1.2 + 0.3 * len(rows), title)
    for y, (name, times) in enumerate(rows.items()):
        axes.barh(y, max(times), height=0.7, color=EMPTY)
        axes.plot(times, [y] * len(times), "|", color=COLORS[0], markersize=10, label=name)
    axes.set(xlabel="seconds since the start", ylim=(len(rows) - 0.5, -0.5), xlim=(0, None))
    axes.set_yticks(range(len(rows)), list(rows))
    return figure
