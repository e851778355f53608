"""Engines side by side: for each repetition, for each workload, each engine in turn reads the same token ids.

    load A, load B                 one after the other, each warmed up by a small edition of every workload
    W1: A B   W2: A B              repetition 1
    W1: A B   W2: A B              repetition 2: fresh ids, so nothing remembered from the first helps

How long it will take is told as soon as all are warm: warming up is the same work with shorter texts. Invariant:
whatever ends a run, Ctrl-C and a failing engine included, what was measured until then is in `records`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.document import Job, Outputs, Record, compare, index_outputs, make_record
from benchmarks.floors import find_floors
from benchmarks.peers import check_peer, is_batched, is_slow, suits
from benchmarks.process import EngineProcess
from benchmarks.workloads import WORKLOADS, Request, choose_subset, make_requests
from minipaged.checks import check_integer, check_number
from minipaged.models.config import read_model_config

WARM_UP_SCALE = 1 / 16


@contextmanager
def quiet(text: str) -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Plan:
    """What to measure; ValueError or TypeError for what cannot be."""

    workloads: tuple[str, ...]
    engines: tuple[str, ...]
    repetitions: int
    model: str
    scale: float
    subset: int
    threads: int
    seed: int
    part: int | None = None  # how many requests engines that run one batch after the other get; None: all
    first: int = 0  # repetitions that were measured before, with other token ids

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in WORKLOADS:
                raise ValueError(f"--workloads {name}: there are {', '.join(WORKLOADS)}")
        for name in self.engines:
            check_peer(name)
        for flag, names in (("--workloads", self.workloads), ("--engines", self.engines)):
            if len(set(names)) != len(names) or not names:
                raise ValueError(f"{flag} {','.join(names)}: at least one, and none twice")
        for name in ("repetitions", "subset", "threads", "part"):
            if (value := getattr(self, name)) is not None:
                check_integer(f"--{name}", value, 1)
        check_number("--scale", self.scale, 0, 1, above_low=True)


class Bench:
    """One run. `start` makes an engine's process; `say` is told what happens."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        limits: dict[str, float],
        start: Callable[[str, Path, int], Any] = EngineProcess,
        busy: Callable[[str], AbstractContextManager[Any]] = quiet,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.plan, self.folder, self.model = plan, folder, read_model_config(folder)
        self.limits, self.start, self.busy, self.say = limits, start, busy, say
        self.processes: dict[str, Any] = {}
        self.peak_memory_mb: dict[str, int] = {}
        self.warm_up_s: dict[tuple[str, str], float] = {}  # by workload and engine
        self.records: list[Record] = []
        self.interrupted = False

    def run(self) -> None:
        """Measure everything; after Ctrl-C or an error, which is raised again, what was measured is in `records`."""
        try:
            self.load()
            for done in range(self.plan.repetitions):
                self.say(f"about {self.foresee(self.plan.repetitions - done) / 60:.1f} minutes from here")
                for workload in self.plan.workloads:
                    self.measure_all(workload, self.plan.first + done)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for process in self.processes.values():
                process.close()

    def load(self) -> None:
        """One after the other: two at once would fight for the cores, and be timed doing so."""
        for engine in self.plan.engines:
            with self.busy(f"{engine}: loading and warming up"):
                self.processes[engine] = self.start(engine, self.folder, self.plan.threads)
                for workload in self.workloads_of(engine):
                    self.warm_up(workload, engine)
            self.say(f"{engine}: loaded in {self.processes[engine].load_s:.1f} s and warm")

    def workloads_of(self, engine: str) -> list[str]:
        return [workload for workload in self.plan.workloads if suits(engine, workload)]

    def warm_up(self, workload: str, engine: str) -> None:
        requests = self.make_requests(workload, "warm-up", self.warm_up_scale)
        subset = self.choose_subset(workload, engine, len(requests), 0)
        sample = self.processes[engine].measure(requests if subset is None else [requests[i] for i in subset])
        self.warm_up_s[workload, engine] = sample.wall_s

    @property
    def warm_up_scale(self) -> float:
        return min(WARM_UP_SCALE, self.plan.scale)

    def foresee(self, repetitions: int) -> float:
        """Seconds for so many: as in the first that is over, or, before, as long as warming up, with longer texts."""
        measured = {(r["workload"], r["engine"]): r["wall_s"] for r in self.records}
        longer = self.plan.scale / self.warm_up_scale
        return repetitions * sum(measured.get(job, seconds * longer) for job, seconds in self.warm_up_s.items())

    def make_requests(self, workload: str, repetition: int | str, scale: float) -> list[Request]:
        return make_requests(workload, self.model.vocab_size, repetition, scale=scale, seed=self.plan.seed)

    def measure_all(self, workload: str, repetition: int) -> None:
        """The same requests on every engine, one after the other."""
        reference: tuple[str, Outputs] | None = None
        for engine in self.plan.engines:
            if not suits(engine, workload):
                continue
            requests = self.make_requests(workload, repetition, self.plan.scale)
            subset = self.choose_subset(workload, engine, len(requests), repetition)
            requests = requests if subset is None else [requests[i] for i in subset]
            job = Job(workload, engine, repetition, subset)
            last = self.plan.first + self.plan.repetitions
            with self.busy(f"{workload}, repetition {repetition + 1} of {last}: {engine}"):
                sample = self.processes[engine].measure(requests)
            self.peak_memory_mb[engine] = sample.peak_memory_mb
            outputs = index_outputs(sample.token_ids, subset)
            agreement = compare(*reference, outputs) if reference else None
            reference = reference or (engine, outputs)
            self.records.append(make_record(job, requests, sample, agreement))
            self.say(describe(self.records[-1]))

    def choose_subset(self, workload: str, engine: str, num_requests: int, repetition: int) -> list[int] | None:
        size = self.plan.subset if is_slow(engine) else self.plan.part if is_batched(engine) else None
        if size is None or num_requests <= size:
            return None
        return choose_subset(workload, num_requests, size, repetition, seed=self.plan.seed)

    def document(self) -> Record:
        """What was measured; where and when is the caller's to add."""
        plan = self.plan
        return {
            **{name: getattr(plan, name) for name in ("model", "threads", "scale", "seed")},
            "interrupted": self.interrupted,
            "limits": self.limits,
            "engines": {name: self.describe_engine(name) for name in plan.engines},
            "workloads": {name: self.describe_workload(name) for name in plan.workloads},
            "repetitions": self.records,
        }

    def describe_engine(self, name: str) -> Record | None:
        if not (process := self.processes.get(name)):
            return None
        peak = self.peak_memory_mb.get(name)
        return {"load_s": process.load_s, "peak_memory_mb": peak, "settings": process.settings}

    def describe_workload(self, name: str) -> Record:
        """Floors are those of the first repetition's requests."""
        floors = find_floors(self.model, self.make_requests(name, 0, self.plan.scale), self.limits)
        figures = [figure._asdict() for figure in WORKLOADS[name].figures]
        return {"what": WORKLOADS[name].what, "figures": figures, "floors": floors}


def describe(record: Record) -> str:
    """One measurement in one line."""
    [first, *_] = WORKLOADS[record["workload"]].figures
    value = record[first.key]
    rate = "" if value is None else f", {value:.1f} {first.label}"
    part = f" ({record['num_requests']} of the requests)" if record["subset"] else ""
    return f"{record['workload']} #{record['repetition'] + 1} {record['engine']}: {record['wall_s']:.2f} s{rate}{part}"
