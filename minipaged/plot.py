"""The table of a comparison as a picture: one panel a question, one bar a level.

    KV waste, %           output tokens/s   short ones done after   most requests in one step
      |█                       █                █  █                       █  █
      |█  ▁  ▁              █  █                █  █  ▃                 ▃  █  █
       01 02 03             01 02 03            01 02 03               01 02 03

Invariant: drawn from the runs' documents alone, like the table. (From level 01.)"""

from collections.abc import Callable, Sequence
from pathlib import Path

from .report import Outcome, at_once, mean_short_latency

PANELS: dict[str, Callable[[Outcome], float]] = {
    "KV waste (reserved, never used), %": lambda run: 100 * (run.document["metrics"]["kv"]["waste"] or 0.0),
    "most requests in one step": lambda run: float(at_once(run)),
    "short ones done after, s (mean)": lambda run: mean_short_latency(run) or 0.0,
    "output tokens/s": lambda run: run.document["metrics"]["output_tokens_per_s"] or 0.0,
}
FORMATS = (".png", ".pdf", ".svg")
BELOW, THIS = "#9aa5b1", "#2f6fde"


def check_plot(target: str) -> None:
    """Before anything runs. Raises ValueError for a file type or an installation that cannot be drawn with."""
    if Path(target).suffix.lower() not in FORMATS:
        raise ValueError(f"--plot {target!r}: a picture ends in {', '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401  late: only pictures need it
    except ModuleNotFoundError:
        raise ValueError("--plot needs matplotlib: pip install 'minipaged[bench]'") from None


def plot(runs: Sequence[Outcome], path: Path) -> None:
    """Draw the comparison to a PNG, PDF or SVG file."""
    from matplotlib.figure import Figure  # the object interface: no display, no global state

    figure = Figure(figsize=(3.2 * len(PANELS), 3.4), layout="constrained")
    names = [run.document["level"].replace("_", "\n") for run in runs]
    for axes, (title, measure) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        bars = axes.bar(names, [measure(run) for run in runs], color=[BELOW] * (len(runs) - 1) + [THIS])
        axes.bar_label(bars, fmt="%.3g", fontsize=8)
        axes.set_title(title, fontsize=9)
        axes.tick_params(axis="x", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
