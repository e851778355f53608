"""Pictures of what was measured, drawn from the JSON documents alone: whoever has the file can draw it again.

    python -m benchmarks.plot                      every document in benchmarks/results, and the README's picture
    python -m benchmarks.plot FILE.json --out DIR

    DIR/NAME.png      NAME.json: a panel for each figure, a bar for each engine; the line on it spans all repetitions
    DIR/readme.png    W2 of the newest document that has it, with how many times faster than the slowest
    DIR/scaling.png, DIR/profile-w1.png ...    of what benchmarks.scaling and benchmarks.profile wrote

A dashed line is the floor, when it is not so far off that the bars would vanish. Nothing here measures anything."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import profile_plot, scaling_plot
from benchmarks.document import Record, middle, select, values
from benchmarks.report import format_value
from minipaged.cli import DONE, Parser, guarded

HERE = Path(__file__).parent
OURS, OTHERS, FLOOR = "#2a6f97", "#b8b8b8", "#9b2226"
FAR = 4  # a floor further away than so many times the longest bar is only told


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.plot", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.json", help="default: all of benchmarks/results")
    parser.add_argument("--out", type=Path, default=HERE / "figures", metavar="DIR", help="default: benchmarks/figures")
    args = parser.parse_args(argv)
    return guarded(parser.prog, debug=False, work=lambda: draw(args.files, args.out))


def draw(files: list[Path], out: Path) -> int:
    documents = {path: read_document(path) for path in files} or find_documents(HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    for path, document in documents.items():
        DRAWN_BY[kind_of(document)](document, out, path.stem)
    runs = [document for document in documents.values() if kind_of(document) == "run"]
    if with_w2 := [document for document in runs if "W2" in document["workloads"]]:
        draw_readme(max(with_w2, key=lambda document: document["created"]), out / "readme.png")
    return DONE


def find_documents(folder: Path) -> dict[Path, Record]:
    """All that can be drawn; the folder has tables of numbers, too. Raises ValueError if there is nothing."""
    documents = {path: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not (found := {path: document for path, document in documents.items() if kind_of(document)}):
        raise ValueError(f"no documents in {folder}: python -m benchmarks.run writes one")
    return found


def kind_of(document: Any) -> str:
    """Whose it is, by the keys it has: "" for none that can be drawn."""
    keys = set(document) if isinstance(document, dict) else set()
    return next((kind for kind, needs in KINDS.items() if needs <= keys), "")


def read_document(path: Path) -> Record:
    try:
        document: Record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no document of benchmarks.run: {error}") from None
    if not kind_of(document):
        raise ValueError(f"{path} is no document of benchmarks.run: it lacks {', '.join(sorted(KINDS['run']))}")
    return document


def draw_document(document: Record, out: Path, stem: str) -> None:
    panels = [(w, figure) for w, described in document["workloads"].items() for figure in described["figures"]]
    height = 1.0 + 0.35 * len(document["engines"])
    figure = Figure(figsize=(8, height * len(panels)), layout="constrained")  # no pyplot: no display, no state
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, (workload, shown) in zip(axes, panels, strict=True):
        draw_panel(ax, document, workload, shown)
    figure.suptitle(describe_origin(document), fontsize=8)
    save(figure, out / f"{stem}.png")


def draw_panel(ax: Axes, document: Record, workload: str, shown: Record) -> None:
    bars = measured(document, workload, shown["key"])
    draw_bars(ax, bars, {name: format_value(middle(found)) for name, found in bars.items()})
    described = document["workloads"][workload]
    ax.set_title(f"{workload}, {described['what']}: {shown['label']}", fontsize=10, loc="left")
    longest = max((max(found) for found in bars.values()), default=0)
    floor = described["floors"].get(shown["key"])
    if floor is not None and floor < FAR * longest:
        ax.axvline(floor, color=FLOOR, linestyle="--", linewidth=1)
        ax.set_xlabel(f"dashed: what this machine allows at best, {format_value(floor)}", fontsize=8, color=FLOOR)


def draw_readme(document: Record, target: Path) -> None:
    """W2 alone, each bar with how many times the slowest engine it is."""
    bars = measured(document, "W2", "output_tokens_per_s")
    slowest = min((middle(found) or 0 for found in bars.values()), default=0)
    labels = {n: f"{format_value(m := middle(found))}   ({(m or 0) / slowest:.1f} ×)" for n, found in bars.items()}
    figure = Figure(figsize=(8, 1.2 + 0.4 * len(bars)), layout="constrained")
    ax = figure.subplots()
    draw_bars(ax, bars, labels)
    ax.set_title(f"output tokens/s, {document['workloads']['W2']['what']}", fontsize=11, loc="left")
    ax.set_xlabel(describe_origin(document), fontsize=8)
    save(figure, target)


def measured(document: Record, workload: str, key: str) -> dict[str, list[float]]:
    """All repetitions of a figure, by the engine's name for a reader; who was not measured is not there."""
    found = {engine: values(select(document, workload, engine), key) for engine in document["engines"]}
    return {name_of(document, engine): numbers for engine, numbers in found.items() if numbers}


def name_of(document: Record, engine: str) -> str:
    settings = document["engines"][engine]["settings"]
    kind = settings.get("config", {}).get("quantization", "none")
    kept = "" if kind == "none" else f", {kind}"
    return f"minipaged {settings['level']}{kept}" if settings.get("level") else engine


def draw_bars(ax: Axes, bars: dict[str, list[float]], labels: dict[str, str]) -> None:
    """The first engine on top; bars are medians, the black lines span from the least to the most."""
    for y, (name, found) in enumerate(bars.items()):
        value = middle(found) or 0.0
        ax.barh(y, value, height=0.65, color=OURS if name.startswith("minipaged") else OTHERS)
        ax.plot([min(found), max(found)], [y, y], color="black", linewidth=1.2)
        ax.annotate(labels[name], (max(found), y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set_yticks(range(len(bars)), list(bars), fontsize=9)
    ax.invert_yaxis()
    ax.margins(x=0.22)
    ax.spines[["top", "right"]].set_visible(False)


def describe_origin(document: Record) -> str:
    machine, torch = document["machine"], document["versions"]["torch"]
    scale = "" if document["scale"] == 1 else f", lengths × {document['scale']:g}"
    commit = (document["commit"] or "no commit")[:8]
    return f"{document['model']}{scale}; {machine['cpu']}, {document['threads']} threads; torch {torch}; {commit}"


KINDS = {
    "scaling": {"points", "fixed", "machine"},
    "profile": {"level", "limits", "workloads"},
    "run": {"created", "engines", "workloads", "repetitions"},
}
DRAWN_BY: dict[str, Callable[[Record, Path, str], None]] = {
    "run": draw_document,
    "scaling": scaling_plot.draw,
    "profile": profile_plot.draw,
}


def save(figure: Figure, target: Path) -> None:
    figure.savefig(target, dpi=120)
    print(f"written to {target}")


if __name__ == "__main__":
    sys.exit(main())
