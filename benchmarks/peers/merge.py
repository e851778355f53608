"""A long measurement may come in pieces: each adds repetitions of its own to one document.

    {... as of benchmarks.document, of the last run,
     "runs": [{"created", "command", "machine", "versions", "commit", "dirty", "limits", "interrupted",
               "repetitions": [0, 1]}]}         which repetitions are whose

Ratios are taken within a repetition, so nothing of one run is ever compared with another's. Invariant: no record is
lost or changed; what cannot stand in one table (another model, scale, seed or number of threads) is refused."""

import json
from pathlib import Path

from benchmarks.document import Record

SAME = ("model", "scale", "seed", "threads")
FACTS = ("created", "command", "machine", "versions", "commit", "dirty", "limits", "interrupted")


def read_pieces(path: Path) -> Record:
    """Raises ValueError, with the path, for what is no document of this kind."""
    try:
        document: Record = json.loads(path.read_text())
        document["runs"], document["engines"], document["repetitions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no document of benchmarks.peers: {error}") from None
    return document


def next_repetition(document: Record | None) -> int:
    """The first number that no repetition has, not even one that was cut."""
    return 1 + max((record["repetition"] for record in document["repetitions"]), default=-1) if document else 0


def check_alike(before: Record | None, wanted: Record) -> None:
    """Before anything is measured. Raises ValueError for what cannot be added to the document."""
    for key in SAME if before else ():
        if before and before[key] != wanted[key]:
            raise ValueError(f"--out has {key} {before[key]}, this run {wanted[key]}: a file for each")


def merge(before: Record | None, document: Record) -> Record:
    """Both; ValueError if they are not alike."""
    check_alike(before, document)
    mine = {**{key: document[key] for key in FACTS}, "repetitions": numbers(document["repetitions"])}
    if before is None:
        return {**document, "runs": [mine]}
    return {
        **document,
        "engines": before["engines"] | {name: facts for name, facts in document["engines"].items() if facts},
        "workloads": before["workloads"] | document["workloads"],
        "repetitions": before["repetitions"] + document["repetitions"],
        "runs": [*before["runs"], mine],
    }


def numbers(records: list[Record]) -> list[int]:
    return sorted({record["repetition"] for record in records})
