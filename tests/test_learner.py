"""python -m levels check: whoever is wrong is told what is wrong, and whoever is right is told so.

Wrong solutions are the mutants of tests/mutants: mistakes that somebody has made. HYPOTHESIS_PROFILE=deep tries all."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from levels.exercises import exercise_of, read, skeletons

from .test_mutants import MUTANTS

ROOT = Path(__file__).parent.parent
IS_DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"  # then all of them: otherwise one or two stand for the rest
STUCK = """
        plan = self.begin(self.config.max_num_batched_tokens, self.config.max_chunk_len)
        while self.running or self.head():
            pass
        return plan
"""


def check(number, folder, **texts):
    """What is said of the real files, with these in the place of some; and the exit code."""
    folder.mkdir(exist_ok=True)
    for part in exercise_of(number).PARTS:
        (folder / part.name).write_text(texts.get(part.name.removesuffix(".py"), read(part)))
    command = [sys.executable, "-m", "levels", "check", str(number), "--mine", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, env=os.environ | {"HYPOTHESIS_PROFILE": "ci"}
    )
    assert done.stderr == ""
    return done.stdout, done.returncode


def mutated(file, fault):
    (mutant,) = [mutant for mutant in MUTANTS if mutant.file == file and mutant.fault == fault]
    return mutant.text()


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5] if IS_DEEP else [1, 5])
def test_what_nobody_has_written_is_named(number, tmp_path):
    parts = exercise_of(number).PARTS
    out, code = check(number, tmp_path, **{n.removesuffix(".py"): text for n, text in skeletons(parts).items()})
    assert code == 1
    assert f"TO DO   {parts[0].name}: {parts[0].holes[0]}" in out
    assert "TASK.md says what it has to do" in out


WRONG = [
    (2, "minipaged/blocks.py", "a reserve that fails keeps what it found", "a failed reserve changes nothing"),
    (2, "minipaged/blocks.py", "the head of a table is handed out before its tail", "the tail is handed out before"),
    (2, "levels/02_paged_attention/engine.py", "newcomers join a batch that is under way", "a batch runs to its end"),
    (3, "levels/03_continuous_batching/engine.py", "a prompt is cut by the blocks that are free", "its whole"),
    (3, "levels/03_continuous_batching/engine.py", "a short one overtakes the head that finds no room", "overtaken"),
    (
        3,
        "levels/03_continuous_batching/engine.py",
        "those who wait are served before those who run",
        "first those who run",
    ),
    (4, "minipaged/prefix.py", "found blocks that nobody holds are also counted as free", "a refused call changes"),
    (4, "minipaged/prefix.py", "a borrowed block is not counted", "every reference is somebody's"),
    (4, "minipaged/prefix.py", "found tokens are computed again, into shared blocks", "written twice"),
    (4, "minipaged/prefix.py", "the newest of equal blocks takes the name, and the older one keeps it too", "agree"),
    (4, "minipaged/prefix.py", "a block that is not full yet is named", "Only full blocks have names"),
    (5, "minipaged/speculative/verify.py", "the draft model's chances are not used", "likes at least as much is kept"),
    (5, "minipaged/speculative/verify.py", "one random number decides twice", "the same random number"),
    (5, "minipaged/speculative/verify.py", "the word that follows an accepted run is lost", "what agrees stands"),
    (5, "minipaged/speculative/verify.py", "what is behind a wrong guess is kept", "what agrees stands"),
    (5, "minipaged/speculative/verify.py", "every guess is accepted", "what the model would never say is not kept"),
    (5, "minipaged/speculative/verify.py", "a wrong guess is replaced by a plain draw", "whatever replaces a guess"),
]


@pytest.mark.parametrize(("number", "file", "fault", "told"), WRONG if IS_DEEP else WRONG[1::4])
def test_whoever_is_wrong_is_told_what(number, file, fault, told, tmp_path):
    out, code = check(number, tmp_path, **{Path(file).stem: mutated(file, fault)})
    assert code == 1
    failure = out.partition("FAILED")[2]
    assert told in " ".join(failure.split()), out
    assert "what it may mean" in failure, out


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5] if IS_DEEP else [4])
def test_the_repository_is_a_solution(number, tmp_path):
    out, code = check(number, tmp_path)
    assert code == 0, out
    assert re.search(r"\d+ tests passed: yours does what the repository's does", out)


def test_whoever_goes_round_for_ever_is_told_where(tmp_path):
    (part,) = exercise_of(3).PARTS
    skeleton = skeletons([part])[part.name]
    text = skeleton.replace('        raise NotImplementedError("Scheduler.schedule is yours to write")\n', STUCK[1:])
    assert text != skeleton
    out, code = check(3, tmp_path, engine=text)
    assert code == 1
    number = 1 + text.splitlines().index("            pass")
    assert re.search(f"schedule does not come back: it goes round in line ({number}|{number - 1})", out), out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def verify(:\n", "verify.py, line 1: Python cannot read this"),
        ("def choose(): pass\n", "verify.py: there is no verify any more"),
    ],
)
def test_what_cannot_even_run_is_named(text, told, tmp_path):
    out, code = check(5, tmp_path, verify=text)
    assert code == 1
    assert told in out
