"""Every chunk of the trace is one slice, as wide as its step, on its request's track."""

import json
from typing import Any

import pytest

from levels import load
from minipaged.config import EngineConfig
from minipaged.driver import Request, Run
from minipaged.sampling_params import SamplingParams
from minipaged.trace.perfetto import to_perfetto

from ..fake_model import FakeModel


def step(number: int, t_s: float, scheduled: dict[str, int], **fields: Any) -> dict[str, Any]:
    counts = {"num_waiting": 0, "num_running": 1, "num_free_blocks": 3}
    events: dict[str, Any] = {"admitted": [], "preempted": [], "finished": []}
    return {"step": number, "t_s": t_s, "num_scheduled_tokens": scheduled, **events, **counts, **fields}


def slices(*steps: dict[str, Any]) -> list[tuple[float, float]]:
    events = to_perfetto({"steps": list(steps)})["traceEvents"]
    return [(event["ts"], event["dur"]) for event in events if event["ph"] == "X"]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_real_trace_is_drawn_chunk_by_chunk(level: int) -> None:
    config = EngineConfig(block_size=4, num_blocks=9, max_model_len=32)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    wanted = [Request([2] * n, params) for n in (9, 5, 7)]
    run = Run(load(level).Engine(config, FakeModel()), wanted, numbered=True).go()
    document = json.loads(json.dumps(run.engine.trace.document()))
    events = json.loads(json.dumps(to_perfetto(document), allow_nan=False))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    drawn = {(e["args"]["step"], tracks[e["tid"]]): e["args"]["tokens"] for e in events if e["ph"] == "X"}
    ran = {(s["step"], f"request {i}"): n for s in document["steps"] for i, n in s["num_scheduled_tokens"].items()}
    assert drawn == ran
    preempted = [tracks[e["tid"]] for e in events if e["ph"] == "i"]
    assert preempted == [f"request {i}" for s in document["steps"] for i in s["preempted"]]
    assert all(e["ts"] >= 0 and e.get("dur", 0) >= 0 for e in events if "ts" in e)


def test_a_step_ends_where_the_next_begins_and_the_last_is_typical() -> None:
    assert slices(step(0, 0.0, {"0": 4}), step(1, 0.5, {"0": 1}), step(2, 0.75, {"0": 1})) == [
        (0.0, 500_000.0),
        (500_000.0, 250_000.0),
        (750_000.0, 375_000.0),
    ]


def test_a_pause_is_not_drawn_as_work() -> None:
    first, second = step(0, 0.0, {"0": 4}), step(1, 0.5, {"0": 1}, num_running=0)
    late = step(2, 60.0, {"1": 4})
    assert slices(first, second, late)[1] == (500_000.0, 500_000.0)


def test_slices_say_what_happened() -> None:
    document = {
        "steps": [
            step(0, 0.0, {"0": 4, "1": 1}, admitted=["0", "1"]),
            step(1, 0.5, {"0": 1}, preempted=["1"], finished=["0"], num_running=0),
        ]
    }
    events = to_perfetto(document)["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names == ["admitted, 4 tokens", "admitted, 1 token", "1 token, finished"]
    counted = [event["args"] for event in events if event["ph"] == "C" and event["ts"] == 500_000.0]
    assert counted == [{"num_waiting": 0}, {"num_running": 0}, {"num_free_blocks": 3}, {"num_tokens": 1}]


def test_an_empty_trace_is_an_empty_picture() -> None:
    assert to_perfetto({"steps": []}) == {"traceEvents": [], "displayTimeUnit": "ms"}
