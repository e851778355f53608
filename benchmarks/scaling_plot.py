"""How the cost of a step grows, drawn and told from the document alone.

    a panel for each axis, both scales logarithmic: milliseconds of a step, of its forward and of the engine's own cost

Where a line is flat, nothing grows; thin lines span from the tenth to the ninetieth of a hundred steps. Colours are
those of viz.py, and each line has a marker and a name of its own."""

from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from minipaged.viz import COLORS, GROUND, INK

Record = dict[str, Any]
COLUMNS = 3
LABELS = {
    "batch": "sequences in the step",
    "context": "tokens of context, each sequence",
    "blocks": "blocks in the pool",
    "waiting": "requests that wait",
    "behind": "steps made before, for others",
    "said": "tokens said before, each sequence",
}


def select(document: Record, axis: str, *, with_model: bool) -> list[Record]:
    return [point for point in document["points"] if point["axis"] == axis and point["with_model"] == with_model]


def print_table(console: Console, document: Record) -> None:
    """Own cost at each axis's ends, and how many times the one is of the other."""
    table = Table(title="the engine's own cost of a step, ms", title_justify="left", box=SIMPLE_HEAD)
    for name in ("", "from", "to", "least", "most", "growth"):
        table.add_column(name, justify="left" if not name else "right")
    for axis in axes_of(document):
        points = select(document, axis, with_model=False)
        first, last = points[0], points[-1]
        growth = f"× {last['own_ms'] / first['own_ms']:.2f}"
        ends = (f"{first['x']:,}", f"{last['x']:,}", f"{first['own_ms']:.3f}", f"{last['own_ms']:.3f}")
        table.add_row(LABELS[axis], *ends, growth)
    console.print(table)


def axes_of(document: Record) -> list[str]:
    return list(dict.fromkeys(point["axis"] for point in document["points"]))


def draw(document: Record, folder: Path, stem: str) -> None:
    axes = axes_of(document)
    num_rows, num_columns = ceil(len(axes) / COLUMNS), min(COLUMNS, len(axes))
    figure = Figure(figsize=(3.6 * num_columns, 0.6 + 2.9 * num_rows), layout="constrained", facecolor=GROUND)
    panels = figure.subplots(num_rows, num_columns, squeeze=False, sharey=True).ravel()
    for ax, axis in zip(panels, axes, strict=False):
        draw_panel(ax, document, axis)
    for ax in panels[len(axes) :]:
        ax.remove()
    machine = document["machine"]
    commit = (document["commit"] or "no commit")[:8]
    figure.suptitle(
        f"a decode step of level 04; {document['model'] or 'no model'}; {machine['cpu']}; {commit}",
        fontsize=8,
        color=INK,
    )
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{stem}.png"
    figure.savefig(target, dpi=120)
    print(f"written to {target}")


def draw_panel(ax: Any, document: Record, axis: str) -> None:
    with_model = select(document, axis, with_model=True)
    lines = [
        ("whole step", with_model, "step_ms", 0, "o"),
        ("engine's own cost, beside the model", with_model, "own_ms", 4, "s"),
    ]
    lines += [("engine's own cost, alone", select(document, axis, with_model=False), "own_ms", 2, "^")]
    for label, points, key, color, marker in lines:
        if points:
            x = [max(point["x"], 0.5) for point in points]  # a logarithm has no zero
            y, spread = [point[key] for point in points], [point[f"{key}_range"] for point in points]
            ax.plot(x, y, color=COLORS[color], marker=marker, label=label, linewidth=1.5, markersize=4)
            ax.vlines(
                x, [least for least, _ in spread], [most for _, most in spread], color=COLORS[color], linewidth=0.6
            )
    ax.set(xscale="log", yscale="log")
    ax.set_xlabel(LABELS[axis], fontsize=9, color=INK)
    ax.set_ylabel("ms a step", fontsize=9, color=INK)
    ax.tick_params(labelsize=8, colors=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, which="major", color="#e6e6e6", linewidth=0.6)
    ax.legend(fontsize=7, frameon=False)
