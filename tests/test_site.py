"""The site is made of the texts there are, and whatever a page links to is in it."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
assert SPEC is not None
assert SPEC.loader is not None
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)

CODE = re.compile(r"^(`{3,}).*?^\1$", re.M | re.S)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    site.make_pages(folder)
    return folder


def test_every_text_of_the_navigation_has_its_page(pages):
    entries = [[entry] if isinstance(entry, str) else next(iter(entry.values())) for entry in site.make_nav()]
    nav = [page for listed in entries for page in listed]
    assert {"README.md", "levels/08_serving/README.md", "walkthroughs/00_tour.md", "docs/museum.md"} <= set(nav)
    assert [page for page in nav if not (pages / page).is_file()] == []


def test_where_a_page_leads_there_is_something(pages):
    for page in pages.rglob("*.md"):
        for link in site.LINK.finditer(CODE.sub("", page.read_text())):
            target = page.parent / link[2]
            assert re.match(r"[a-z]+:", link[2]) or target.is_file(), f"{page.relative_to(pages)}: {link[2]}"


def test_a_text_is_there_as_it_is_but_for_its_links(pages):
    original = (ROOT / "README.md").read_text()
    assert site.LINK.sub("", original) == site.LINK.sub("", (pages / "README.md").read_text())


def test_a_walkthrough_brings_its_texts_what_it_said_and_its_pictures(pages):
    page = (pages / "walkthroughs" / "02_paged_attention.md").read_text()
    cells = json.loads((ROOT / "walkthroughs" / "02_paged_attention.ipynb").read_text())["cells"]
    outputs = [out.get("data", {}) for cell in cells for out in cell.get("outputs", [])]
    pictures = [data for data in outputs if "image/png" in data]
    assert page.count("![what this drew](") == len(pictures) > 0
    assert len(list((pages / "walkthroughs").glob("02_*.png"))) == len(pictures)
    assert "slot_mapping [" in page
    assert "\x1b" not in page


def test_nothing_is_fetched_from_outside():
    assert "font: false" in (ROOT / "docs" / "mkdocs.yml").read_text()
    assert "http" not in (ROOT / "docs" / "mkdocs.yml").read_text()


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="mkdocs-material comes with the extra 'site'")
def test_mkdocs_has_nothing_to_complain_about(tmp_path, pages):
    shutil.copytree(pages, tmp_path / "build" / "pages")
    settings = {"INHERIT": str(ROOT / "docs" / "mkdocs.yml"), "docs_dir": "pages", "site_dir": "site"}
    (tmp_path / "build" / "mkdocs.yml").write_text(json.dumps(settings | {"nav": site.make_nav()}))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(tmp_path / "build" / "mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "build" / "site" / "levels" / "02_paged_attention" / "index.html").is_file()
