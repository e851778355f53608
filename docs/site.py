"""The pages of a site, made of the texts that are here anyway: READMEs, docs/, the walkthroughs with their outputs.

    python docs/site.py          build/pages, build/mkdocs.yml       `make site` does this, then mkdocs
    README.md, levels/*/README.md, docs/*.md ...      as they are; a link to a folder leads to its page
    walkthroughs/02_*.ipynb                           a page: texts, code, what it said, its pictures
    a file that is linked to                          a page of its own, or itself; a folder: the list of what is in it

Nothing is written twice: there is no text for the site alone. Invariant: whatever a page links to within the repository
is in the site, too; nothing is fetched, neither now nor by whoever reads it."""

import base64
import json
import posixpath
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SECTIONS = {
    "": ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"],
    "The levels": ["levels/[0-9]*/README.md"],
    "Walkthroughs": ["walkthroughs/*.ipynb"],
    "To look things up": ["docs/*.md", "benchmarks/README.md"],
}
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".md": "markdown"}
MOST_TEXT = 60_000  # characters of a file that becomes a page; a longer one is handed out as it is
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def main() -> None:
    pages = BUILD / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    make_pages(pages)
    settings = {"INHERIT": "../docs/mkdocs.yml", "docs_dir": "pages", "site_dir": "site", "nav": make_nav()}
    (BUILD / "mkdocs.yml").write_text(json.dumps(settings, indent=1))  # JSON is YAML
    print(f"{len(list(pages.rglob('*.md')))} pages in {pages}")


def make_nav() -> list[Any]:
    """Titles are the pages' own."""
    nav: list[Any] = []
    for title, patterns in SECTIONS.items():
        pages = [page_of(path) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        nav += [{title: pages}] if title else pages
    return nav


def make_pages(folder: Path) -> None:
    """Whatever the sections name, and whatever is linked to from there on."""
    todo = [path for patterns in SECTIONS.values() for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    done: set[Path] = set()
    while todo:
        if (path := todo.pop()) not in done:
            done.add(path)
            todo += make_page(path, folder)


def make_page(path: Path, folder: Path) -> list[Path]:
    """Write a file's or folder's page; returns what it links to."""
    target = folder / page_of(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix != ".md":
        shutil.copyfile(path, target)
        return []
    text = read(path, target)
    here = path / "_" if path.is_dir() else path
    found = [linked for link in LINK.finditer(text) if (linked := resolve(here, link[2])) and linked.exists()]
    target.write_text(LINK.sub(lambda link: link[1] + relink(here, target, folder, link[2]) + link[3], text))
    return found


def page_of(path: Path) -> str:
    """Where in the site it is, from the top."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{name}/README.md"
    if path.suffix == ".ipynb":
        return name.removesuffix(".ipynb") + ".md"
    if path.suffix in LANGUAGES and path.suffix != ".md" and path.stat().st_size < MOST_TEXT:
        return f"{name}.md"
    return name


def resolve(here: Path, link: str) -> Path | None:
    """What a link leads to, if that is in the repository; a folder with a README is that README."""
    if re.match(r"[a-z]+:", link):
        return None
    path = Path(posixpath.normpath(posixpath.join(here.parent.as_posix(), link)))
    return path / "README.md" if (path / "README.md").is_file() else path


def relink(here: Path, page: Path, folder: Path, link: str) -> str:
    if (path := resolve(here, link)) is None or not path.exists():
        return link
    return posixpath.relpath((folder / page_of(path)).as_posix(), page.parent.as_posix())


def read(path: Path, target: Path) -> str:
    """A page's text; links are still as from where the file is."""
    if path.is_dir():
        names = [name for name in list_files(path) if "/" not in name]
        return "\n".join([f"# {path.relative_to(ROOT)}/", "", *(f"- [{name}]({name})" for name in names), ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "\n\n".join(part for i, cell in enumerate(json.loads(text)["cells"]) for part in show(i, cell, target))
    if path.suffix == ".md":
        return text
    fence = "`" * 5
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path.relative_to(ROOT)}\n"
    return f"{head}\n{fence}{LANGUAGES[path.suffix]}\n{text}{fence}\n"


def list_files(folder: Path) -> list[str]:
    """Those that git knows, or would take, from the folder on."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."]
    return sorted(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split())


def show(number: int, cell: dict[str, Any], target: Path) -> list[str]:
    """A cell, and what it said."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    parts = [f"```python\n{source}\n```"]
    for i, output in enumerate(cell["outputs"]):
        data = output.get("data", {})
        if "image/png" in data:
            picture = target.with_name(f"{target.stem}_{number}_{i}.png")
            picture.write_bytes(base64.b64decode("".join(data["image/png"])))
            parts.append(f"![what this drew]({picture.name})")
        elif "text/markdown" in data:
            parts.append("".join(data["text/markdown"]))
        else:
            text = ESCAPE.sub("", "".join(output.get("text", data.get("text/plain", "")))).rstrip()
            parts.append(f"```text\n{text}\n```")
    return parts


if __name__ == "__main__":
    main()
