"""The museum of faults: every mutant on a page, with the history that gives it away.

    tests/mutants/*.toml        the fault, the edit, and the public report if there is one
    tests/mutants/caught.json   for those that a state machine judges: the sentence it breaks, and the shortest history
    docs/museum.md              both, as a page to read; a test says whether it is current

`python -m tests.museum` writes the page; with `--look` it first looks for the histories that are missing, which takes
seconds each (`--look-again`: for all of them). Only block managers have one: an engine's whole life is too long to be
read."""

import difflib
import importlib
import json
import sys
import textwrap
import traceback
from itertools import groupby
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import run_state_machine_as_test

from .learner import MOST_SHRINKING_S, StuckError, history, read_message, smallest, watched
from .test_mutants import BROKEN_PROMISES, MACHINES, MUTANTS, imported_anew

ROOT = Path(__file__).parent.parent
PAGE, CAUGHT = ROOT / "docs" / "museum.md", Path(__file__).parent / "mutants" / "caught.json"
THOROUGH = settings(
    max_examples=200,
    stateful_step_count=20,
    report_multiple_bugs=False,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
JUDGES = {
    "05": "by a thousand small lives with guesses (`tests/guessing.py`)",
    "twins": "by a test of its own (`tests/test_prefix.py`)",
    "chances": "by how often each answer comes (`tests/chances.py`)",
    "plain": "by the same rules in plain Python (`tests/plain.py`)",
    "stop strings": "by a search in the whole text (`tests/stopping.py`)",
    "structured": "by small languages (`tests/grammars.py`)",
}
INTRODUCTION = """\
# The bug museum

Each of these is a small wrong edit that stands for a fault: many are faults that real engines had (the report is named
where there is one), the others are what one might easily write. `tests/test_mutants.py` makes each edit in memory and
fails unless the tests notice. Where a state machine noticed, this is the shortest history that it found, in a world of
6 blocks of 2 slots; newcomers are (tokens, salt, how many of them). The kernels have
[a collection of their own](../tests/kernels/mutants).

This page is written by `python -m tests.museum`: change `tests/mutants`, not the page.
"""


def key(mutant):
    return f"{mutant.file}: {mutant.fault}"


def look(mutant):
    """The sentence that it breaks, and the shortest history found in which it does; None if no machine breaks it."""
    if mutant.judge not in MACHINES:
        return None
    with imported_anew(mutant), watched({str(ROOT / mutant.file)}):
        machine = getattr(importlib.import_module(f"tests.test_{mutant.judge}"), MACHINES[mutant.judge])
        try:
            run_state_machine_as_test(machine, settings=THOROUGH)
        except (*BROKEN_PROMISES, BaseExceptionGroup) as error:
            error = smallest(error)
            claim, facts = read_message(error)
            return {"sentence": claim or " ".join(facts[:1]) or where(error), "history": history(error)}
        except StuckError as error:
            return {"sentence": str(error), "history": []}
    return None


def where(error):
    """What a bare assert says: the name of its function if that is a sentence, else the assert itself."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/" in frame.filename]
    name, line = frames[-1].name.replace("_", " "), (frames[-1].line or "").removeprefix("assert ")
    return name if " " in name else f"after {name}: {line}"


def page(mutants, caught):
    parts = [INTRODUCTION]
    for file, group in groupby(sorted(mutants, key=lambda mutant: mutant.file), key=lambda mutant: mutant.file):
        parts.append(f"## {file}\n")
        parts += [exhibit(mutant, caught.get(key(mutant))) for mutant in group]
    return "\n".join(parts)


def exhibit(mutant, catch):
    lines = [f"### {mutant.fault}\n"]
    if mutant.report:
        lines.append(f"Reported: {mutant.report}\n")
    edit = difflib.unified_diff(mutant.old.strip("\n").splitlines(), mutant.new.strip("\n").splitlines(), lineterm="")
    lines += ["```diff", *list(edit)[3:], "```\n"]
    if catch:
        steps = [part for line in catch["history"] for part in textwrap.wrap(line, 116, subsequent_indent="    ")]
        lines += [f"Breaks: *{catch['sentence']}*\n", *(["```text", *steps, "```\n"] if steps else [])]
    else:
        lines.append(f"Caught {JUDGES.get(mutant.judge, 'by many small lives (`tests/pair.py`)')}.\n")
    return "\n".join(lines)


def main(argv):
    caught = {} if "--look-again" in argv else json.loads(CAUGHT.read_text())
    engine.MAX_SHRINKING_SECONDS = MOST_SHRINKING_S
    for mutant in MUTANTS if {"--look", "--look-again"} & {*argv} else []:
        if key(mutant) not in caught and (catch := look(mutant)):
            caught[key(mutant)] = catch
            CAUGHT.write_text(json.dumps(caught, indent=1, ensure_ascii=False) + "\n")  # whatever interrupts the rest
    PAGE.write_text(page(MUTANTS, json.loads(CAUGHT.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
