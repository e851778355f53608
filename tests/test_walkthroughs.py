"""Walkthroughs define nothing, quote instead of pasting, and take every number of their prose from a cell or a paper.

Running them is `make notebooks`: here only what can be read."""

import ast
import json
import re
from pathlib import Path

import pytest

from levels import NAMES

FOLDER = Path(__file__).parent.parent / "walkthroughs"
SOURCES = sorted(path for path in FOLDER.glob("*.py") if path.name != "run.py")
RUN = [path for path in SOURCES if path.with_suffix(".ipynb").exists()]
MEASURED = re.compile(r"\d[\d.,]*\s*(%|ms\b|s\b|GB/s|GFLOP|tokens/s|times)")
PUBLISHED = re.compile(r"et al\.|announcement")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def cells(path):
    """(kind, text) of each cell of a py:percent file."""
    for part in re.split(r"^# %%", path.read_text(), flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        kind = "markdown" if "[markdown]" in head else "code"
        lines = body.strip().splitlines()
        yield kind, "\n".join(re.sub("^# ?", "", line) for line in lines) if kind == "markdown" else "\n".join(lines)


def code(path):
    return "\n".join(text for kind, text in cells(path) if kind == "code")


def prose(path):
    return "\n".join(text for kind, text in cells(path) if kind == "markdown")


def test_every_level_has_its_walkthrough_and_there_is_a_tour():
    assert {"00_tour", *NAMES, "reading_a_kernel"} <= {path.stem for path in SOURCES}
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in SOURCES}


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_what_is_committed_was_run_from_top_to_bottom(path):
    notebook = json.loads(path.with_suffix(".ipynb").read_text())
    run = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in run] == list(range(1, len(run) + 1))
    assert not [out for cell in run for out in cell["outputs"] if out["output_type"] == "error"]
    committed = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert [text for kind, text in committed if kind == "markdown"] == [
        t for kind, t in cells(path) if kind == "markdown"
    ]
    assert [re.sub("^# %", "%", t, flags=re.M) for kind, t in cells(path) if kind == "code"] == [
        text for kind, text in committed if kind == "code"
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_defines_nothing_and_quotes_what_it_shows(path):
    nodes = list(ast.walk(ast.parse(code(path))))
    assert not [node for node in nodes if isinstance(node, DEFINITIONS)]
    assert "quote(" in code(path)
    assert not re.search(r"^\s*(def|class) ", prose(path), flags=re.M)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_measured_number_stands_in_an_output_or_names_its_source(path):
    for paragraph in prose(path).split("\n\n"):
        assert PUBLISHED.search(paragraph) or not MEASURED.search(paragraph), paragraph


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_asks_questions_and_their_answers_are_folded(path):
    text = prose(path)
    assert text.count("<details><summary>") == text.count("</summary>") == text.count("</details>") >= 3


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_where_a_link_leads_there_is_something(path):
    for target in re.findall(r"\]\(([^)#]+)", prose(path)):
        assert (FOLDER / target).exists(), target


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_what_was_quoted_still_stands_in_its_file(path):
    for cell in json.loads(path.with_suffix(".ipynb").read_text())["cells"]:
        for output in cell.get("outputs", []):
            if text := "".join(output.get("data", {}).get("text/markdown", "")):
                file, code = re.fullmatch(r"`(.*?)`\n\n```python\n(.*)```", text, flags=re.S).groups()
                assert code in (FOLDER.parent / file).read_text(), (
                    f"{path.stem} quotes {file}: run.py --write {path.stem}"
                )
