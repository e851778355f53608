"""python -m levels exercise: what is handed out is the source of today, minus what the learner writes."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from levels import NAMES
from levels.__main__ import main
from levels.exercises import Part, cut_out, exercise_of, found, is_open, read, skeletons
from minipaged.cli import DONE, REFUSED

ROOT = Path(__file__).parents[2]
LEVELS = [n for n, name in enumerate(NAMES, 1) if (ROOT / "levels" / name / "exercise.py").exists()]
PARTS = [(number, part) for number in LEVELS for part in exercise_of(number).PARTS]
SOURCE = '''def one(x):
    """What it promises."""
    y = x  # of its body
    return y


class Two:
    def three(self): return 3

    def four(self):
        return (
            4)
'''


def without(text: str, holes: tuple[str, ...]) -> str:
    """The text's tree with these functions emptied."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in {hole.split(".")[-1] for hole in holes}:
            node.body = node.body[: bool(ast.get_docstring(node))]
    return ast.dump(tree)


def test_a_hole_keeps_its_name_and_its_promise_and_nothing_else() -> None:
    text = cut_out(SOURCE, ("Two.four", "one"))
    expected = SOURCE.replace("    y = x  # of its body\n    return y\n", '    raise NotImplementedError("one is yours')
    assert text.startswith(expected[: expected.index("class Two")].rstrip("\n"))
    assert [is_open(function) for _, function in found(text, ("one", "Two.three", "Two.four"))] == [True, False, True]
    assert without(text, ("one", "four")) == without(SOURCE, ("one", "four"))


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match=r"there is no Two\.five"):
        found(SOURCE, ("one", "Two.five"))


@pytest.mark.parametrize(("number", "part"), PARTS, ids=lambda value: value.name if isinstance(value, Part) else value)
def test_a_skeleton_is_the_source_minus_its_holes(number: int, part: Part) -> None:
    text = skeletons([part])[part.name]
    assert without(text, part.holes) == without(read(part), part.holes)
    assert all(is_open(function) for _, function in found(text, part.holes))
    assert not any(is_open(function) for _, function in found(read(part), part.holes))
    for test in part.tests:
        assert (ROOT / test.split(" -k ")[0]).is_file(), test


@pytest.mark.parametrize("number", LEVELS)
def test_every_hint_is_about_a_sentence_that_some_test_says(number: int) -> None:
    exercise = exercise_of(number)
    files = [ROOT / test.split(" -k ")[0] for part in exercise.PARTS for test in part.tests]
    files += [
        ROOT / "tests" / f"{name}.py" for name in ("ledger", "policies", "pair", "fake_model", "guessing", "chances")
    ]
    files += [ROOT / "minipaged" / "blocks.py", ROOT / "minipaged" / "base.py"]
    said = "\n".join(re.sub(r'"\s*f?"', "", file.read_text()) for file in files)
    said += "\n".join(path.stem.replace("_", " ") for path in (ROOT / "tests" / "traces").glob("*.txt")) + "IndexError"
    assert [key for key in exercise.HINTS if key not in said and key.replace(" ", "_") not in said] == []


@pytest.mark.parametrize("number", LEVELS)
def test_the_folder_has_the_task_and_the_files(number: int, tmp_path: Path, capsys: Any) -> None:
    folder, parts = tmp_path / "mine", exercise_of(number).PARTS
    assert main(["exercise", str(number), "--out", str(folder)]) == DONE
    assert {path.name for path in folder.iterdir()} == {"TASK.md", *(part.name for part in parts)}
    task = (folder / "TASK.md").read_text()
    for text in (
        f"# Level {number:02}",
        f"check {number} --mine {folder}",
        *(hole for part in parts for hole in part.holes),
    ):
        assert text in task
    assert str(folder / parts[0].name) in capsys.readouterr().out


def test_nobody_s_work_is_written_over(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "prefix.py").write_text("mine")
    assert main(["exercise", "4", "--out", str(tmp_path)]) == REFUSED
    assert "prefix.py is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["prefix.py"]
    assert (tmp_path / "prefix.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["exercise", "99"], "level 99 has no part to write; 01, 02"),
        (["check", "4", "--mine", "nowhere"], "nowhere has no prefix.py: python -m levels exercise 4 writes one"),
    ],
)
def test_what_cannot_be_written_or_checked_is_one_line(argv: list[str], named: str, capsys: Any) -> None:
    assert main(argv) == REFUSED
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert named in err
