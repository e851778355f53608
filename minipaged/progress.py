"""Whatever takes more than a second says what it does, on stderr, so that stdout stays clean for documents.

    at a terminal      converting smollm2-135m ━━━━━━━━━━━━━━╸━━━━━━━━ 342/538 MB 0:00:05
    anywhere else      converting smollm2-135m (538 MB) ...
                       converting smollm2-135m: done in 8 s

Invariant: a line without a terminal is written whole and at once, and only work that succeeded is reported as done.
Deliberately missing: nested tasks, rates and estimates of the time that is left. (From level 01.)"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@contextmanager
def progress(task: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """Report `task`, of num_bytes, while the block runs; yields the function to call with the bytes done so far."""
    report = _bar if sys.stderr.isatty() else _lines
    with report(task, num_bytes) as show:
        yield show


@contextmanager
def _lines(task: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    say(f"{task} ({num_bytes / 1e6:.0f} MB) ...")
    start = time.monotonic()
    yield lambda done: None
    say(f"{task}: done in {time.monotonic() - start:.0f} s")


@contextmanager
def _bar(task: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console  # here, as a start that has nothing to report shall not pay for it
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        bar_id = bar.add_task(task, total=num_bytes)
        yield lambda done: bar.update(bar_id, completed=min(done, num_bytes))
        bar.update(bar_id, completed=num_bytes)
