"""A test that no wrong engine fails proves nothing: each of these small wrong edits must be caught.

    tests/mutants/*.toml    file, judge; then for each mutant the fault it stands for, the old text and the new
    judge                   the machine of a block manager, the storms of a level, the chances of words, wishes in plain
                            Python, languages, portions, or a test

An edit is made in memory: the rooms that hold no tensor are imported anew, one of them with other text, and the judges
with them. The same judges pass the code as it is, imported in the same way, or catching would mean nothing: a few cases
here; all of them are tests of their own."""

import importlib
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .swap import Swap

ROOT = Path(__file__).parent.parent
DOWNSTAIRS = {"attention", "input_batch", "kernels", "kv_cache", "models", "runner"}
BROKEN_PROMISES = (AssertionError, RuntimeError, LookupError, ValueError, OverflowError, pytest.fail.Exception)
QUICK = settings(max_examples=60, stateful_step_count=20, phases=[Phase.generate], report_multiple_bugs=False)
MACHINES = {"blocks": "BlockManagerMachine", "prefix": "PrefixCacheMachine"}
NUM_STORMS = {"01": 100, "02": 100, "03": 250, "05": 150}
TESTS = {
    "twins": "test_a_duplicate_is_given_up_for_the_block_named_first_or_its_tail_would_outlive_the_head",
    "broken step": "judge_broken_steps",
}
ROOMS = {  # with a `judge` of their own
    "chances": "chances",
    "plain": "plain",
    "portions": "portions",
    "stop strings": "stopping",
    "structured": "grammars",
}
JUDGES = [*MACHINES, *NUM_STORMS, *TESTS, *ROOMS]


class Mutant(NamedTuple):
    """A small wrong edit of one file."""

    file: str
    judge: str
    fault: str
    old: str
    new: str
    report: str = ""  # where somebody had it

    @property
    def module(self):
        return self.file.removesuffix(".py").replace("/", ".")

    def text(self):
        text = (ROOT / self.file).read_text()
        assert text.count(self.old) == 1, f"{self.file} holds {text.count(self.old)} times: {self.old}"
        return text.replace(self.old, self.new)


def read_mutants():
    for path in sorted(Path(__file__).parent.glob("mutants/*.toml")):
        document = tomllib.loads(path.read_text())
        for entry in document["mutant"]:
            yield Mutant(**{"file": document["file"], "judge": document["judge"], **entry})


MUTANTS = list(read_mutants())


def is_upstairs(name):
    room = name.split(".")
    return len(room) > 1 and room[0] in ("minipaged", "levels", "tests") and room[1] not in DOWNSTAIRS


@contextmanager
def imported_anew(mutant=None):
    """Inside, everything that holds no tensor is imported from its text, or the mutant's; outside, all is as before."""
    finders = [Swap(mutant.module, ROOT / mutant.file, mutant.text())] if mutant else []
    saved = {name: sys.modules.pop(name) for name in list(sys.modules) if is_upstairs(name)}
    sys.meta_path[:0] = finders
    try:
        yield
    finally:
        del sys.meta_path[: len(finders)]
        for name in [name for name in sys.modules if is_upstairs(name)]:
            del sys.modules[name]
        sys.modules.update(saved)
        for name, module in saved.items():
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, module)


def load_judge(name, share=1.0):
    """share: of the seeds and examples that a mutant gets."""
    if name in MACHINES:
        machine = getattr(importlib.import_module(f"tests.test_{name}"), MACHINES[name])
        quick = settings(QUICK, max_examples=round(QUICK.max_examples * share))
        return lambda: [run_state_machine_as_test(machine, settings=quick)]
    if name in TESTS:
        return getattr(importlib.import_module("tests.test_prefix"), TESTS[name])
    if name in ROOMS:
        return importlib.import_module(f"tests.{ROOMS[name]}").judge
    room, storm_name = ("guessing", "guess_storm") if name == "05" else ("pair", "storm")
    storm = getattr(importlib.import_module(f"tests.{room}"), storm_name)
    return lambda: [storm(int(name), seed) for seed in range(round(NUM_STORMS[name] * share))]


def test_there_are_mutants_of_every_kind():
    assert len(MUTANTS) >= 14
    assert {mutant.judge for mutant in MUTANTS} == set(JUDGES)


@pytest.mark.parametrize("judge", JUDGES)
def test_the_code_as_it_is_passes_every_judge(judge):
    """A few cases: what would fail here is the importing. All of them are in the tests of the code itself."""
    with imported_anew():
        load_judge(judge, share=0.05)()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{Path(mutant.file).stem}: {mutant.fault}")
def test_is_caught(mutant):
    with imported_anew(mutant):
        judge = load_judge(mutant.judge)  # an edit that cannot even be imported stands for no fault
        with pytest.raises(BROKEN_PROMISES):
            judge()
