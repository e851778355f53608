"""A trace is a picture: one track a request, one slice a step, counters for tokens, queue and free blocks.

    request 0   | admitted, 400 | 400 |   | 1 | 1 |        a slice is as wide as its step
    request 1                   | admitted, 224 | ...
    free blocks  64 ‾‾\\__ 38 ____/‾‾

The Chrome trace-event format (JSON), which ui.perfetto.dev and chrome://tracing open. A step ends where the next one
begins, for a trace knows only beginnings; one that left nothing to do is drawn as long as the median at most, for what
follows is a pause. Invariant: times are microseconds from the first step, and nothing is drawn that is not in the
trace. (From level 01.)"""

from itertools import pairwise
from statistics import median
from typing import Any

Json = dict[str, Any]
PROCESS = 1
COUNTERS = ("num_waiting", "num_running", "num_free_blocks")
NO_DURATION_S = 1e-3


def to_perfetto(document: Json) -> Json:
    """The contract's trace document as trace events. Raises ValueError when it is none."""
    steps = document.get("steps") if isinstance(document, dict) else None
    if not isinstance(steps, list):
        raise ValueError('a trace document has a list "steps"')
    tracks = {name: i for i, name in enumerate(dict.fromkeys(i for s in steps for i in s["num_scheduled_tokens"]), 1)}
    events = [name_track(name, track) for name, track in tracks.items()]
    for step, duration in zip(steps, measure(steps), strict=True):
        events += draw_step(step, duration, tracks)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def measure(steps: list[Json]) -> list[float]:
    """How long each step took, in seconds, as far as the beginnings of all tell."""
    gaps = [after["t_s"] - before["t_s"] for before, after in pairwise(steps)]
    ends = [step["num_running"] + step["num_waiting"] == 0 for step in steps]
    typical = median([gap for gap, end in zip(gaps, ends, strict=False) if not end] or [NO_DURATION_S])
    return [min(gap, typical) if end else gap for gap, end in zip([*gaps, typical], ends, strict=False)]


def name_track(request_id: str, track: int) -> Json:
    label = {"name": f"request {request_id}"}
    return {"ph": "M", "name": "thread_name", "pid": PROCESS, "tid": track, "args": label}


def draw_step(step: Json, duration: float, tracks: dict[str, int]) -> list[Json]:
    start = round(step["t_s"] * 1e6, 1)
    slices = [
        {
            "ph": "X",
            "name": describe(step, request_id, num_tokens),
            "ts": start,
            "dur": round(duration * 1e6, 1),
            "pid": PROCESS,
            "tid": tracks[request_id],
            "args": {"step": step["step"], "tokens": num_tokens},
        }
        for request_id, num_tokens in step["num_scheduled_tokens"].items()
    ]
    preempted = [
        {"ph": "i", "s": "t", "name": "preempted", "ts": start, "pid": PROCESS, "tid": tracks[request_id]}
        for request_id in step["preempted"]
        if request_id in tracks
    ]
    counted = {**{name: step[name] for name in COUNTERS}, "num_tokens": sum(step["num_scheduled_tokens"].values())}
    counters = [{"ph": "C", "name": k, "ts": start, "pid": PROCESS, "args": {k: v}} for k, v in counted.items()]
    return [*slices, *preempted, *counters]


def describe(step: Json, request_id: str, num_tokens: int) -> str:
    admitted = "admitted, " if request_id in step["admitted"] else ""
    finished = ", finished" if request_id in step["finished"] else ""
    return f"{admitted}{num_tokens} token{'s' * (num_tokens != 1)}{finished}"
