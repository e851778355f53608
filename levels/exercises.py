"""A level's key part is cut out of its source for a learner to write; the project's own tests are the judge.

    levels/NN_name/exercise.py              the task as text, PARTS: what is cut out and who judges it, HINTS
    python -m levels exercise 4             the real file with holes in it, and the task, in a folder of the learner's
    python -m levels check 4 --mine DIR     the learner's file in the place of the real one, under the real tests

The solution is the repository. Invariant: what is handed out is the source as it is now, minus the holes, so that no
exercise is older than what it asks for."""

import ast
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from levels import NAMES, load

ROOT = Path(__file__).parent.parent
HOLE = "is yours to write"


class Part(NamedTuple):
    """One sitting: fill the `holes` of `file`, a path from the root; `tests` are pytest's node ids."""

    file: str
    holes: tuple[str, ...]  # "Class.method" or "function"
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return Path(self.file).name

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")


def exercise_of(number: int) -> Any:
    """The module levels.NN_name.exercise. Raises ValueError for a level that has none."""
    have = [n for n, name in enumerate(NAMES, 1) if (ROOT / "levels" / name / "exercise.py").exists()]
    if number not in have:
        raise ValueError(f"level {number:02} has no part to write; {', '.join(f'{n:02}' for n in have)} have one")
    return load(number, "exercise")


def write_exercise(args: Namespace) -> int:
    """Skeleton and task, in a folder that holds neither yet."""
    exercise, folder = exercise_of(args.number), Path(args.out or f"exercise_{args.number:02}")
    texts = {"TASK.md": task(args.number, exercise, folder)} | skeletons(exercise.PARTS)
    for name in texts:
        if (folder / name).exists():
            raise ValueError(f"{folder / name} is there already; give another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    print(f"Read TASK.md, fill the holes, then: {command(args.number, folder)}")
    return 0


def command(number: int, folder: Path) -> str:
    return f"python -m levels check {number} --mine {folder}"


def task(number: int, exercise: Any, folder: Path) -> str:
    """The page a learner begins with; what the functions promise is quoted from them."""
    question = (sys.modules[exercise.__package__].__doc__ or "").strip()
    lines = [f"# Level {number:02}: {question[0].lower()}{question[1:]}", "", exercise.__doc__.strip(), ""]
    for part in exercise.PARTS:
        lines += [f"## To write in {part.name}", ""]
        lines += [f"- `{hole}`{promise(function)}" for hole, function in found(read(part), part.holes)]
        lines += ["", "Judged by " + ", ".join(f"`{test}`" for test in part.tests) + ".", ""]
    lines += ["Check it, as often as you like, from the project's folder:", "", f"    {command(number, folder)}", ""]
    return "\n".join(lines)


def promise(function: ast.FunctionDef) -> str:
    text = ast.get_docstring(function)
    return f": {' '.join(text.split())}" if text else ", as described above"


def read(part: Part) -> str:
    return (ROOT / part.file).read_text(encoding="utf-8")


def skeletons(parts: Iterable[Part]) -> dict[str, str]:
    """File name -> text; two parts of one file are cut out of the same skeleton."""
    texts: dict[str, str] = {}
    for part in parts:
        texts[part.name] = cut_out(texts.get(part.name, read(part)), part.holes)
    return texts


def found(text: str, holes: Iterable[str]) -> list[tuple[str, ast.FunctionDef]]:
    """The functions of these names. Raises LookupError for one that is not there."""
    functions: dict[str, ast.FunctionDef] = {}
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        functions |= {prefix + each.name: each for each in inner if isinstance(each, ast.FunctionDef)}
    if missing := [hole for hole in holes if hole not in functions]:
        raise LookupError(f"there is no {missing[0]}")
    return [(hole, functions[hole]) for hole in holes]


def cut_out(text: str, holes: Iterable[str]) -> str:
    """The text with each hole's body, but for its docstring, replaced by an error that says whose work it is."""
    lines = text.splitlines(keepends=True)
    for hole, function in sorted(found(text, holes), key=lambda pair: -pair[1].lineno):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        indent = " " * body[0].col_offset
        lines[body[0].lineno - 1 : function.end_lineno] = [f'{indent}raise NotImplementedError("{hole} {HOLE}")\n']
    return "".join(lines)


def is_open(function: ast.FunctionDef) -> bool:
    """Whether nobody has written it yet."""
    words = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
    return any(isinstance(word, str) and word.endswith(HOLE) for word in words)


def check_exercise(args: Namespace) -> int:
    """In a process of its own, so that the learner's modules meet nobody who has imported the real ones."""
    exercise, folder = exercise_of(args.number), Path(args.mine)
    for part in exercise.PARTS:
        if not (folder / part.name).is_file():
            raise ValueError(f"{folder} has no {part.name}: python -m levels exercise {args.number} writes one")
    judge = [sys.executable, "-m", "tests.learner", str(args.number), str(folder.resolve())]
    return subprocess.run(judge, cwd=ROOT, check=False).returncode
