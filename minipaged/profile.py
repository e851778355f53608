"""Where the time of a run went: a stopwatch around each kind of work, put there once, before the run.

    step   schedule | guess | pack | forward                                        | sample | report | rest
                                     embed  [norm product rope attend product ...]          whatever else
                                             each with a stopwatch, the gaps are "rest of the forward"

`Profile(engine)` finds the parts of an engine and of its model by the names of what they do, and puts a timed call in
the place of each; an engine that is not profiled has none of this in it. On a CPU a lap is two looks at the clock. On a
GPU work is only handed over, so there a lap is two events in its stream, read when the run is over.

Invariant: laps never overlap, and what no lap covers is a line of its own, so all lines together are the run. What the
stopwatches cost is measured, and said below the table. Ranks and replicas in processes of their own are not looked
into: a line says how long they were waited for. (For all levels.)"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from .driver import AnyEngine
from .runner import ModelRunner

Work = Callable[..., Any]

ATTENTION, PRODUCTS, SMALL, EXPERTS = "attention", "products", "norm, rope, activation", "experts"
IN_FORWARD, WAITING = "rest of the forward", "waiting for other processes"
SCHEDULING, GUESSING, PACKING, SAMPLING = "scheduling", "guessing", "packing", "sampling"
REPORTS, REST = "reports and text", "rest of the step"
IN_MODEL = {  # by the name under which a part of the model keeps the operation
    "attend": ATTENTION,
    "product": PRODUCTS,
    "rope": SMALL,
    "silu_mul": SMALL,
    "route": EXPERTS,
    "fused_moe": EXPERTS,
}
NORMS = ("rms_norm", "add_rms_norm")  # which parts find in their Ops
WINDOWS, CALLS = 20, 1_000  # whatever else runs can only make a window slower: the best one counts


class Line(NamedTuple):
    """share: of the run's wall time."""

    name: str
    seconds: float
    share: float


class Stopwatch:
    """Laps by name, by this process's clock."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.num_laps = 0

    def timed(self, name: str, work: Work) -> Work:
        def lap(*args: Any, clock: Callable[[], float] = time.perf_counter) -> Any:
            start = clock()
            result = work(*args)
            self.spent[name] += clock() - start
            self.num_laps += 1
            return result

        return lap

    def another(self) -> "Stopwatch":
        return Stopwatch()

    def read(self) -> dict[str, float]:
        """Seconds by name."""
        return dict(self.spent)

    def lap_s(self) -> float:
        """What one lap costs the host, measured here and now."""
        lap = self.another().timed("", int)
        return max(0.0, best_s(lap) - best_s(int)) / CALLS


class DeviceStopwatch(Stopwatch):
    """Laps between two events of a GPU's stream; to read them is to wait for the last."""

    def __init__(self, make_event: Callable[[], Any]):
        super().__init__()
        self.make_event = make_event
        self.laps: list[tuple[str, Any, Any]] = []

    def timed(self, name: str, work: Work) -> Work:
        def lap(*args: Any) -> Any:
            start, end = self.make_event(), self.make_event()
            start.record()
            result = work(*args)
            end.record()
            self.laps.append((name, start, end))
            self.num_laps += 1
            return result

        return lap

    def another(self) -> Stopwatch:
        return DeviceStopwatch(self.make_event)

    def read(self) -> dict[str, float]:
        for name, start, end in self.laps:
            end.synchronize()
            self.spent[name] += start.elapsed_time(end) / 1e3
        self.laps = []
        return super().read()


class Profile:
    """Of one engine, from its making on. Profile it before its first step, and once."""

    def __init__(self, engine: AnyEngine):
        self.engine, self.watch = engine, Stopwatch()
        self.device_watch: Stopwatch = self.watch
        self.runner: ModelRunner | None = None
        self.packing_since: float | None = None
        self.guessed_s = self.forward_s = 0.0
        if not (inner := inner_engines(engine)):
            replicas = engine.replicas  # type: ignore[attr-defined]
            put(replicas, "poll", self.watch.timed(WAITING, replicas.poll))
        for each in inner:
            self.profile_engine(each)

    def profile_engine(self, engine: Any) -> None:
        put(engine.desk, "report", self.watch.timed(REPORTS, engine.desk.report))
        put(engine, "step", self.noticing(engine.step, before=True))
        if scheduler := getattr(engine, "scheduler", None):
            put(scheduler, "schedule", self.noticing(self.watch.timed(SCHEDULING, scheduler.schedule), before=False))
        if drafter := getattr(engine, "drafter", None):
            put(drafter, "propose", self.watch.timed(GUESSING, drafter.propose))
        runner = engine.model if isinstance(engine.model, ModelRunner) else getattr(engine.model, "model", None)
        if not isinstance(runner, ModelRunner):
            if hasattr(engine, "wait_for"):  # ranks have it
                put(engine, "wait_for", self.watch.timed(WAITING, engine.wait_for))
        elif self.runner is None:  # replicas in one process share it
            self.runner = runner
            self.profile_model(runner)

    def profile_model(self, runner: ModelRunner) -> None:
        if runner.device.type == "cuda":
            make_event: Work = torch.cuda.Event  # whose types torch does not tell
            self.device_watch = DeviceStopwatch(lambda: make_event(enable_timing=True))
        runner.forward, self.forward_s = runner.eager, -own_forward_s(runner)  # a recorded step has no parts to time
        runner.model.stack = [*runner.model.layers]  # nor has a layer in one call
        put(runner, "sample", self.watch.timed(SAMPLING, runner.sample))
        put(runner.model, "entrance", Arrival(runner.model.entrance, self.end_packing))
        for part in parts_of(runner.model):
            for name, kind in IN_MODEL.items():
                if callable(work := vars(part).get(name)):
                    put(part, name, self.device_watch.timed(kind, work))
            if "ops" in vars(part):
                norms = {name: self.device_watch.timed(SMALL, getattr(part.ops, name)) for name in NORMS}
                put(part, "ops", part.ops._replace(**norms))

    def noticing(self, work: Work, *, before: bool) -> Work:
        """Packing begins when work does, or when it is done."""

        def call(*args: Any) -> Any:
            self.packing_since = time.perf_counter() if before else self.packing_since
            result = work(*args)
            self.packing_since = self.packing_since if before else time.perf_counter()
            self.guessed_s = self.watch.spent.get(GUESSING, 0.0)
            return result

        return call

    def end_packing(self) -> None:
        """The forward has begun; what was guessed in between has a line of its own."""
        if self.packing_since is not None:
            guessed_s = self.watch.spent.get(GUESSING, 0.0) - self.guessed_s
            self.watch.spent[PACKING] += time.perf_counter() - self.packing_since - guessed_s
            self.packing_since = None

    def lines(self, wall_s: float) -> list[Line]:
        """Of a run of so many seconds, in which they add up."""
        spent = self.watch.read()
        if self.device_watch is not self.watch:
            spent |= self.device_watch.read()
        inside = sum(spent.get(name, 0.0) for name in set(IN_MODEL.values()))
        if self.runner:
            spent[IN_FORWARD] = self.forward_s + own_forward_s(self.runner) - inside
        spent[REST] = wall_s - sum(spent.values())
        order = (*dict.fromkeys(IN_MODEL.values()), IN_FORWARD, WAITING, SAMPLING, GUESSING, SCHEDULING, PACKING)
        names = [name for name in (*order, REPORTS, REST) if name in spent]
        return [Line(name, spent[name], spent[name] / wall_s if wall_s else 0.0) for name in names]

    @property
    def cost_s(self) -> float:
        """What the stopwatches themselves took of the run, in seconds, as far as the host had to wait for them."""
        return sum(watch.lap_s() * watch.num_laps for watch in {self.watch, self.device_watch})


class Arrival:
    """The model's entrance, and a bell; for everything else it is the entrance."""

    def __init__(self, entrance: Any, ring: Callable[[], None]):
        self.entrance, self.ring = entrance, ring

    def __call__(self, batch: Any) -> Any:
        self.ring()
        return self.entrance(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.entrance, name)


def best_s(work: Work) -> float:
    """Seconds of CALLS calls, in the best of WINDOWS windows."""
    windows = []
    for _ in range(WINDOWS):
        start = time.perf_counter()
        for _ in range(CALLS):
            work()
        windows.append(time.perf_counter() - start)
    return min(windows)


def own_forward_s(runner: ModelRunner) -> float:
    """Without its draft models, which have a line of their own."""
    return runner.forward_s - sum(draft.forward_s for draft in runner.drafts.values())


def put(owner: Any, name: str, work: Any) -> None:
    """In the place of a method or a part, of this one object."""
    setattr(owner, name, work)


def inner_engines(engine: Any) -> list[Any]:
    """Those that step in this process: itself, or from level 07 on the replicas that are here."""
    if not (replicas := getattr(engine, "replicas", None)):
        return [engine]
    return [core.engine for core in getattr(replicas.wire, "cores", [])]


def parts_of(thing: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Every object of this house that can be reached from here, once."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, list | tuple | dict):
        for each in thing.values() if isinstance(thing, dict) else thing:
            yield from parts_of(each, seen)
    elif type(thing).__module__.startswith("minipaged.") and hasattr(thing, "__dict__"):
        yield thing
        for each in list(vars(thing).values()):
            yield from parts_of(each, seen)
