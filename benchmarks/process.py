"""Each engine lives in a process of its own, is loaded once, and is asleep whenever another one is being measured.

    minipaged:3         load warm-up |+######|.......|+######|.......   #  runs, with all threads and caches to itself
    transformers:one    load warm-up |.......|+######|.......|+######   .  stopped (SIGSTOP): not even a spinning thread
                                       +  wakes: a small job that no clock sees
                                       repetition 1   repetition 2

Alternating within one run makes slow drift of the machine hit all alike. A process of its own, because in a common one
thread pools and allocators disturb each other, and peak memory has no owner; kept alive, because a fresh one for every
repetition would load weights and compile kernels again and always run cold; stopped, because some thread pools spin
while they wait, at whoever's cost; and with it whatever processes it has started. While it is stopped, an engine keeps
its memory: the machine needs room for all. Who slept for minutes wakes with cold caches and pages, whoever
ran last has them warm: so a small job, which no clock sees, goes before each run.

Invariant: all clocks are here, outside, and tick between the same two messages for every engine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workloads import Request

ROOT = Path(__file__).parent.parent
WAKING_TOKENS = 16


@dataclass(frozen=True)
class Sample:
    """One run of one engine; model_s only if the engine knows it."""

    token_ids: list[list[int]]
    wall_s: float
    ttft_s: float
    model_s: float | None
    peak_memory_mb: int


class WorkerProcess:
    """Runs `command`, which says "loaded" and is then asleep, but for jobs. Raises RuntimeError with its own words."""

    def __init__(self, name: str, command: list[str], num_threads: int):
        self.name = name
        start = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **thread_limits(num_threads)},
            process_group=0,  # Ctrl-C at the terminal is the harness's alone
        )
        try:
            self.settings: dict[str, Any] = self.receive("loaded")
        except BaseException:
            self.close()
            raise
        self.load_s = time.perf_counter() - start
        self.signal(signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """To the whole group, as some engines are several processes; to nobody, if it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}") from None

    def receive(self, key: str | None = None) -> Any:
        """The next message, or what it holds under key."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}")
        message = json.loads(line)
        if "error" in message:
            raise RuntimeError(f"{self.name}: {message['error']}")
        return message[key] if key else message

    def expect(self, event: str) -> None:
        if (found := self.receive()) != {"event": event}:
            raise RuntimeError(f"{self.name} said {str(found)[:80]} where {event!r} was expected")

    def close(self) -> None:
        self.signal(signal.SIGKILL)  # reaches those who are stopped, too
        self.process.communicate()


class EngineProcess(WorkerProcess):
    """Raises RuntimeError, with the engine's own words, when it fails or gives less than it was asked for."""

    def __init__(self, name: str, folder: Path, num_threads: int, interpreter: str = sys.executable):
        super().__init__(name, [interpreter, "-m", "benchmarks.worker", name, str(folder)], num_threads)

    def measure(self, requests: list[Request]) -> Sample:
        with self.awake():
            self.run(wake_up_call(requests))
            sample = self.run(requests)
        self.check(sample.token_ids, requests)
        return sample

    def run(self, requests: list[Request]) -> Sample:
        self.send({"requests": requests})
        self.expect("ready")
        start = time.perf_counter()  # before "go": on a busy machine the engine may be far on when send returns
        self.send({"event": "go"})
        self.expect("first")
        first = time.perf_counter()
        self.expect("done")
        end = time.perf_counter()
        answer = self.receive()
        return Sample(answer.pop("answer"), end - start, first - start, **answer)

    def check(self, token_ids: list[list[int]], requests: list[Request]) -> None:
        """Whoever does less work must not look fast."""
        if len(token_ids) != len(requests):
            raise RuntimeError(f"{self.name} answered {len(token_ids)} of {len(requests)} requests")
        for i, (tokens, request) in enumerate(zip(token_ids, requests, strict=True)):
            if len(tokens) != request.max_tokens:
                raise RuntimeError(f"{self.name} gave {len(tokens)} tokens to request {i}, not {request.max_tokens}")


def wake_up_call(requests: list[Request]) -> list[Request]:
    """As many, short: the ends of their prompts, read backwards, so that no cache knows how the real ones begin."""
    return [Request(request.prompt_token_ids[::-1][:WAKING_TOKENS], 1) for request in requests]


def thread_limits(num_threads: int) -> dict[str, str]:
    """For OpenMP (torch, oneDNN), MKL and numba: read once, when they are loaded."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return dict.fromkeys(names, str(num_threads))
