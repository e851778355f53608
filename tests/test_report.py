"""Every number of the table can be found in the documents."""

import io
from typing import Any

import pytest
from rich.console import Console

from minipaged.report import ROWS, Outcome, make_table, mean_short_latency

NOTHING = {"mean": None, "p50": None, "p99": None}


def outcome(level: str = "03_continuous_batching", **metrics: Any) -> Outcome:
    latencies = [(12, 4.0), (3, 1.0), (2, 2.0)]
    document = {
        "level": level,
        "requests": [{"token_ids": [7] * n, "latency_s": seconds} for n, seconds in latencies],
        "metrics": {
            "wall_s": 4.25,
            "steps": 1234,
            "output_tokens_per_s": 17.04,
            "ttft_s": {"mean": 0.5, "p50": 0.5, "p99": 0.5},
            "preemptions": 2,
            "prefix_cache_hit_tokens": None,
            "prefix_cache_hit_rate": None,
            "draft_tokens": 1000,
            "acceptance_rate": 0.625,
            "tokens_per_forward": 2.5,
            "kv": {"reserved_slots_mean": 4096.0, "used_slots_mean": 1024.4, "waste": 0.75},
            **metrics,
        },
    }
    trace = {"steps": [{"num_scheduled_tokens": {"0": 5}}, {"num_scheduled_tokens": {"0": 1, "1": 1}}]}
    return Outcome(document, trace)


def interrupted() -> Outcome:
    """Before anything happened."""
    empty = outcome(output_tokens_per_s=None, ttft_s=NOTHING, kv=dict.fromkeys(outcome().document["metrics"]["kv"]))
    for request in empty.document["requests"]:
        request |= {"token_ids": [], "latency_s": None}
    return Outcome(empty.document, {"steps": []}, interrupted=True)


def test_a_row_is_a_number_of_the_documents() -> None:
    assert {name: measure(outcome()) for name, measure in ROWS.items()} == {
        "seconds in all": "4.2 s",
        "steps": "1234",
        "output tokens/s": "17.0",
        "first token after (mean)": "0.50 s",
        "short ones done after (mean)": "1.50 s",
        "last one done after": "4.00 s",
        "most requests in one step": "2",
        "KV slots reserved (mean)": "4,096",
        "KV slots used (mean)": "1,024",
        "KV waste (reserved, never used)": "75.0%",
        "tokens run through the model": "7",
        "of them by each replica": "-",
        "prompt tokens found": "-",
        "tokens guessed": "1,000 (62% right)",
        "tokens per forward": "2.50",
        "preemptions": "2",
    }


def test_what_each_replica_ran_is_added_up() -> None:
    steps = [{"num_scheduled_tokens": {"0": n}, "replica": replica} for replica, n in [(1, 5), (0, 2000), (1, 1)]]
    assert ROWS["of them by each replica"](Outcome({}, {"steps": steps})) == "2,000 + 6"


def test_what_never_happened_is_a_dash() -> None:
    measured = {name: measure(interrupted()) for name, measure in ROWS.items()}
    dashes = [name for name, text in measured.items() if text == "-"]
    assert dashes == [
        "output tokens/s",
        "first token after (mean)",
        "short ones done after (mean)",
        "last one done after",
        "KV slots reserved (mean)",
        "KV slots used (mean)",
        "KV waste (reserved, never used)",
        "of them by each replica",
        "prompt tokens found",
    ]
    assert measured["most requests in one step"] == "0"


def test_the_short_ones_are_all_but_the_longest_answer() -> None:
    assert mean_short_latency(outcome()) == 1.5
    alone = outcome()
    del alone.document["requests"][1:]
    assert mean_short_latency(alone) is None


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_has_a_column_a_run_and_marks_what_to_look_at(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    runs = [outcome("02_paged_attention"), outcome(), interrupted()]
    console.print(make_table("a title", runs, ("steps",)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0].strip() == "a title"
    assert [line for line in lines if "→" in line] == [line for line in lines if "→ steps" in line] != []
    assert max(map(len, lines)) <= width
    assert all(any(name in line for line in lines) for name in ROWS)  # the first column is never cut
