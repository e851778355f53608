"""Where the time of a workload went, over its floors, drawn from the document alone: a picture for each workload."""

from pathlib import Path

from benchmarks.document import Record
from minipaged.viz import spent


def draw(document: Record, folder: Path, stem: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    commit = (document["commit"] or "no commit")[:8]
    for name, found in document["workloads"].items():
        where = f"{document['model']} on level {document['level']:02}, {document['machine']['cpu']}, {commit}"
        title = (
            f"{name} × {document['scale']:g}: {found['steps']} steps; stopwatches {found['stopwatches']:.1%}\n{where}"
        )
        target = folder / f"{stem}-{name.lower()}.png"
        spent(found["spent_s"], found["floors_s"], title).savefig(target, dpi=120)
        print(f"written to {target}")
