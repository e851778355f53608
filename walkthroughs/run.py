"""A walkthrough is run from top to bottom, and has to say what it said when it was committed, timings aside.

    python walkthroughs/run.py            all of them, each in a kernel of its own; exit code 1 if one raises or differs
    python walkthroughs/run.py --write    the same, and its outputs become the committed ones
    python walkthroughs/run.py 02 04      only those

As many run at a time as there are cores, each on one thread; with --write, where pictures are kept that show what was
measured, one after the other on all cores.

    02_paged_attention.py  --jupytext-->  02_paged_attention.ipynb        what is edited, and the same with its outputs

Numbers with a decimal point are timings and shares: any number may stand there. Pictures are drawn again, not
compared; what goes to stderr is not compared either."""

import argparse
import asyncio
import os
import re
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent
DONE, FAILED = 0, 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="the beginnings of their names; default: all")
    parser.add_argument("--write", action="store_true", help="commit to what comes out")
    parser.add_argument("--cell-s", type=int, default=90, help="seconds that a cell may take (default 90)")
    args = parser.parse_args()
    start = time.perf_counter()
    complaints = asyncio.run(visit_all(sources(args), args))
    print(f"{time.perf_counter() - start:.0f} s in all")
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return FAILED if complaints else DONE


def sources(args):
    """Those that were asked for; the last levels take longest, so they come first."""
    paths = sorted((path for path in FOLDER.glob("*.py") if path.name != "run.py"), reverse=True)
    return [path for path in paths if path.name.startswith(tuple(args.names or [""]))]


async def visit_all(paths, args):
    """What there is to complain about, each complaint with a name before it."""
    at_once = 1 if args.write else min(len(paths), os.cpu_count() or 1)
    if at_once > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    seats = asyncio.Semaphore(at_once)
    found = await asyncio.gather(*[visit(path, args, seats) for path in paths])
    return [
        f"{path.name}: {complaint}" for path, complaints in zip(paths, found, strict=True) for complaint in complaints
    ]


async def visit(source, args, seats):
    """Run one, when there is a seat; what there is to complain about."""
    async with seats:
        return await run(source, args)


async def run(source, args):
    start, notebook = time.perf_counter(), read(source)
    options = {"timeout": args.cell_s, "record_timing": False, "coalesce_streams": True}
    client = NotebookClient(notebook, resources={"metadata": {"path": str(FOLDER)}}, **options)
    try:
        await client.async_execute()
    except CellExecutionError as error:
        return [f"a cell raises\n{error}"]
    finally:
        print(f"{source.stem}: {time.perf_counter() - start:.0f} s", flush=True)
    for cell in notebook.cells:
        if cell.cell_type == "code":  # warnings of this machine's are not for a reader
            cell.outputs = [out for out in cell.outputs if (out.output_type, out.get("name")) != ("stream", "stderr")]
    target = source.with_suffix(".ipynb")
    if args.write:
        nbformat.write(notebook, target)
        return []
    return compare(nbformat.read(target, as_version=4), notebook)


def read(source):
    """The notebook as it is edited, without outputs; cells are numbered, so that a diff shows what changed."""
    notebook = jupytext.read(source)
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i}"
    return notebook


def compare(committed, now):
    """Each cell's source and what it says."""
    if len(committed.cells) != len(now.cells):
        return [f"{len(committed.cells)} cells are committed, {len(now.cells)} are in the source: run with --write"]
    found = []
    for i, (old, new) in enumerate(zip(committed.cells, now.cells, strict=True)):
        if old.source != new.source:
            found.append(f"cell {i} has another source than the committed one: run with --write")
        elif (was := says(old)) != (does := says(new)):
            found.append(f"cell {i} says\n    {does}\nand not, as committed,\n    {was}")
    return found


def says(cell):
    """What a cell's outputs say, with a # for each number that may differ; a picture counts as a picture."""
    parts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            parts.append(output.text if output.name == "stdout" else "")
        elif "image/png" in output.get("data", {}):
            parts.append("(a picture)")
        else:  # a quote is whatever the source is now: tests/test_walkthroughs.py holds it against the file
            parts.append("(a quote)" if "text/markdown" in output.data else output.data.get("text/plain", ""))
    text = re.sub(r"\d+\.\d+", "#", "\n".join(parts))
    return re.sub(r"[\s\u2500-\u257f]+", " ", text).strip()  # the lines of a table are as long as its numbers


if __name__ == "__main__":
    sys.exit(main())
