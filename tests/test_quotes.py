"""What a text says was measured is what the results say; where there is no source, there is no figure."""

import json
import re
from pathlib import Path

import pytest

from .quotes import RESULTS, Quote, evaluate, quotes

ROOT = Path(__file__).parent.parent
TEXTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
TEXTS += [ROOT / "docs" / "glossary.md", ROOT / "docs" / "from_here_to_vllm.md"]
TEXTS += sorted(ROOT.glob("levels/*/README.md"))
NUMBER = r"(?:(?<![\w.])[\d.,]*\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|half))"
WORDS = r"(?:ms|s|µs|MB|GB|hours?|minutes?|seconds?|(?:output |prompt )?tokens/s|times)\b"
MEASURED = re.compile(
    rf"{NUMBER}\s+(?:%|(?:(?:and )?an? |half )*{WORDS})(?!<!--)|(?<![\w.])[\d.,]*\d% of the time(?!<!--)"
)
COMMENT = re.compile(r"<!--.*?-->", re.S)
NO_MEASUREMENTS = {  # what looks like one, and what it is
    "README.md": {
        "2.6 GB": "what pip says it downloads and unpacks",
        "40 minutes": "how long to read a walkthrough: a guess",
        "3.8 times": "256 bytes in 68: tests/test_kv_cache.py",
        "1.9 times": "128 bytes in 68: tests/test_kv_cache.py",
    },
    "ARCHITECTURE.md": {
        "five seconds": "a limit: tests/parallel/test_multiprocess.py",
        "15 s": "a limit: minipaged/serving/patience.py",
        "five minutes": "a limit: minipaged/serving/patience.py",
        "eight times": "a rate: minipaged/serving/observatory.py",
    },
    "levels/06_tensor_pipeline_parallel/README.md": {
        "0.65 GB": "four bytes for each weight, and for those of the head once more",
        "0.54 GB": "four bytes for each weight",
        "0.45 GB": "a setting: demo.py",
    },
    "benchmarks/README.md": {
        "100 %": "what agreement would be if nobody rounded",
        "538 MB": "four bytes for each weight",
        "55 tokens/s": "a floor: tests/benchmarks/test_floors.py",
        "5 %": "a goal",
        "30 GB": "what the floors beside it are made of: tests/benchmarks/test_floors.py",
        "263 output tokens/s": "a floor",
        "32 output tokens/s": "a floor",
        "545 prompt tokens/s": "a floor",
        "32 times": "how often a prefix is read",
        "16 times": "how often a step reserves",
        "5 GB": "what pip downloads and unpacks",
        "ten seconds": "a setting: benchmarks/endurance.py",
        "six seconds": "a setting: benchmarks/endurance.py",
        "half a second": "a setting: VERDICT_S",
        "half an hour": "so that nobody starts it in a hurry",
        **dict.fromkeys(
            ("60 %", "80 %", "61.8 %", "79.6 %", "4 %", "24 times", "4 times"), "claimed by others, who are named"
        ),
        "19 µs": "held against its row below",
    },
}


def names(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """Without code."""
    return re.sub(r"^    .*$", "", path.read_text(), flags=re.M)


@pytest.mark.parametrize("path", TEXTS, ids=names)
def test_a_figure_is_what_its_source_says(path):
    for quote in quotes(path.read_text()):
        assert quote.is_true, (
            f"{names(path)} says {quote.figure} {quote.unit}, {quote.file} {quote.source:.4g}: {quote}"
        )


@pytest.mark.parametrize("path", TEXTS, ids=names)
def test_every_source_that_is_named_was_read(path):
    text = path.read_text()
    assert len(quotes(text)) == len([1 for comment in COMMENT.findall(text) if re.match(r"<!-- [\w-]+: ", comment)])


@pytest.mark.parametrize("path", TEXTS, ids=names)
def test_what_was_measured_names_its_source(path):
    known = NO_MEASUREMENTS.get(names(path), {})
    found = [" ".join(match[0].split()) for match in MEASURED.finditer(prose(path))]
    assert [figure for figure in found if figure not in known] == []
    assert set(known) <= set(found), "an exemption that nobody needs"


def test_a_figure_that_differs_is_noticed():
    took_ms = json.loads((RESULTS / "cpu-sampling.json").read_text())["ms"]["forward"]
    said = [f"{figure} ms<!-- cpu-sampling: ms.forward -->" for figure in (f"{took_ms:.1f}", f"{took_ms + 0.1:.1f}")]
    assert [quote.is_true for quote in quotes(" and ".join(said))] == [True, False]


OPERATIONS = {"adopt, nothing": "adopt new", "adopt, found": "adopt known", "decode": "decode", "release": "release"}
OURS, THEIRS = "minipaged:sha256", "vllm:sha256"
SMALL, LARGE = 1000, 1_000_000  # blocks in the pool


def test_the_table_of_block_managers_is_what_was_measured():
    document = json.loads((RESULTS / "allocator-ring.json").read_text())
    lines = (ROOT / "benchmarks" / "README.md").read_text().splitlines()
    for name, operation in OPERATIONS.items():
        (line,) = [line for line in lines if line.startswith(f"| {name}")]
        said = [float(number) for number in re.findall(r"\d+\.?\d*", " ".join(line.split("|")[2:]))]
        at = f".ns_per_block.{operation}"
        cells = []
        for manager in (OURS, THEIRS):
            cells += [evaluate(document, f"repetitions[{manager}, {n}]{at}") / 1000 for n in (SMALL, LARGE)]
            cells.append(evaluate(document, f"repetitions[{manager}, {LARGE}]{at} / [{manager}, {SMALL}]"))
        cells += [evaluate(document, f"repetitions[{THEIRS}, {n}]{at} / [{OURS}, {n}]") for n in (SMALL, LARGE)]
        assert said == pytest.approx(cells, rel=5e-3, abs=5e-3), line


AXES = {
    "sequences": "batch",
    "context": "context",
    "blocks in": "blocks",
    "requests": "waiting",
    "steps": "behind",
    "tokens said": "said",
}


def test_the_table_of_what_a_step_costs_is_what_was_measured():
    document = json.loads((RESULTS / "scaling.json").read_text())
    points = document["points"]
    lines = (ROOT / "benchmarks" / "README.md").read_text().splitlines()
    for name, axis in AXES.items():
        (line,) = [line for line in lines if line.startswith(f"| {name}") and "→" in line]
        own = {point["x"]: point["own_ms"] for point in points if point["axis"] == axis and not point["with_model"]}
        ends, costs = [
            [float(n.replace(",", "")) for n in re.findall(r"\d[\d,.]*", cell)] for cell in line.split("|")[2:4]
        ]
        assert ends == [min(own), max(own)], line
        assert costs == pytest.approx([own[min(own)], own[max(own)]], rel=0.01, abs=0.005), line
    least, most = (evaluate(document, f"points[axis=batch, x={n}, with_model=False].own_ms") for n in (1, 256))
    each = 1000 * (most - least) / 255
    assert any(f"{each:.0f} µs each" in line for line in lines)


DOCUMENT = {
    "share": 0.756,
    "wait_s": 0.0123,
    "cells": [{"name": "a", "n": 1, "t": 2.0}, {"name": "a", "n": 2, "t": 4.0}, {"name": "b", "n": 1, "t": 8.0}],
    "others": [{"name": "a", "t": 1.0}, {"name": "a", "t": 8.0}],
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("share", 0.756),
        ("cells.0.t", 2.0),
        ("cells[name=a].t", 3.0),
        ("cells[name=a, n=2].t", 4.0),
        ("cells[name=b].t / cells[name=a].t", 8.0 / 3.0),
        ("cells[*].t", 4.0),
        ("cells[a].t / others[name=a].t", 1.25),
        ("cells[b].t / [a, n=2]", 2.0),
    ],
)
def test_a_path_leads_to_a_value_or_to_the_median_of_several(expression, value):
    assert evaluate(DOCUMENT, expression) == pytest.approx(value)


@pytest.mark.parametrize("expression", ["nothing", "cells[name=c].t", "share / nothing"])
def test_a_path_to_nowhere_is_an_error(expression):
    with pytest.raises(LookupError):
        evaluate(DOCUMENT, expression)


@pytest.mark.parametrize(
    ("unit", "expression", "factor"),
    [("%", "a.waste", 100), ("ms", "a.ttft_s.p50", 1e3), ("µs", "a.ns_per_block.decode", 1e-3), ("times as", "a", 1)],
)
def test_units_are_the_texts(unit, expression, factor):
    assert Quote("1", unit, "file", expression).factor == factor
