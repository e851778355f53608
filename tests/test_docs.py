"""Texts tell the truth: what they name is there, and what they link to exists."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LISTED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True
).stdout.split()
TEXTS = sorted(ROOT / name for name in LISTED) or sorted(ROOT.glob("*.md"))
OURS = ("minipaged/", "levels/", "kernels/", "tests/", "benchmarks/", "walkthroughs/", "docs/")


def names(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", TEXTS, ids=names)
def test_where_a_link_leads_there_is_something(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not re.match(r"https?:|mailto:|#", target):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("path", TEXTS, ids=names)
def test_a_heading_that_is_linked_to_is_there(path):
    for target in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", path.read_text()):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            text = (path.parent / file).read_text() if file else path.read_text()
            headings = [
                re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in text.splitlines()
                if line.startswith("#")
            ]
            assert anchor in headings, target


@pytest.mark.parametrize(
    "path", [ROOT / "docs" / "glossary.md", ROOT / "docs" / "from_here_to_vllm.md", ROOT / "CONTRIBUTING.md"], ids=names
)
def test_a_file_that_is_named_is_there(path):
    named = re.findall(r"`([\w./]+)`", path.read_text())
    ours = [name for name in named if name.startswith(OURS)]
    assert [name for name in ours if not (ROOT / name).exists() and "NN_" not in name] == []
    assert path.name == "CONTRIBUTING.md" or len(ours) > 2
