"""Reports say only what is new, of those who are live, and a refusal is an answer."""

import pytest

from minipaged.config import EngineConfig
from minipaged.core.loop import EngineCore
from minipaged.core.messages import (
    Abort,
    Add,
    Answer,
    Ask,
    Report,
    Turn,
    decode_command,
    decode_event,
    encode,
    pack_params,
)
from minipaged.core.pace import CommonPace, OwnPace, make_pace
from minipaged.sampling_params import SamplingParams

from .echo import CONFIG, EchoEngine


def new_core(**fields):
    return EngineCore(EchoEngine(EngineConfig(**{**CONFIG, **fields})), OwnPace())


def ask(ticket, prompt=(5,), *, name=None, **params):
    packed = pack_params(SamplingParams(**{"temperature": 0, "max_tokens": 3, **params}))
    return Add(ticket, name or f"r{ticket}", list(prompt), packed)


def turns(core):
    reports = []
    while core.is_due:
        reports.append(core.turn())
    return reports


def test_each_report_has_only_what_no_report_had_before():
    core = new_core()
    assert core.take(ask(7, n=2)) == []
    reports = turns(core)
    assert [[gain.token_ids for news in report.news for gain in news.gains] for report in reports] == [
        [[6], [6]],
        [[7], [7]],
        [[8], [8]],
    ]
    assert [gain.finish_reason for gain in reports[-1].news[0].gains] == ["length"] * 2
    assert {news.ticket for report in reports for news in report.news} == {7}
    assert [record.step for report in reports for record in report.steps] == [0, 1, 2]
    assert core.engine.trace.steps == [], "records are handed over, not kept"
    assert not core.known
    assert not core.names


def test_a_choice_that_ended_before_is_not_spoken_of_again():
    core = new_core(max_num_seqs=1)  # one after the other
    core.take(ask(0, n=2, max_tokens=2))
    assert [[gain.index for gain in report.news[0].gains] for report in turns(core)] == [[0], [0], [1], [1]]


def test_a_refusal_is_an_error_of_that_request_and_of_nobody_else():
    core = new_core()
    core.take(ask(0))
    [report] = core.take(ask(1, prompt=[]))
    assert (report.news[0].ticket, report.news[0].error) == (1, "the prompt is empty")
    [report] = core.take(Add(2, "r2", [5], {"temperature": -1}))
    assert report.news[0].error.startswith("temperature must be")
    [report] = core.take(Add(3, "r3", [5], {"taste": "sweet"}))
    assert "taste" in report.news[0].error
    [report] = core.take(ask(4, name="r0"))
    assert "'r0' belongs to a request that is still running" in report.news[0].error
    assert report.last_ticket == 4
    assert turns(core)[-1].news[0].gains[0].finish_reason == "length"


def test_an_aborted_one_is_gone_and_its_room_is_reported_at_once():
    core = new_core()
    core.take(ask(0, max_tokens=50))
    core.turn()
    [report] = core.take(Abort(0))
    assert (report.occupancy.num_running, report.occupancy.num_free_blocks) == (0, CONFIG["num_blocks"])
    assert core.take(Abort(0)) == core.take(Abort(99)) == [report], "unknown tickets too: how things stand"
    core.take(ask(1, name="r0"))
    assert {news.ticket for report in turns(core) for news in report.news} == {1}


def test_questions_are_answered():
    core = new_core()
    core.take(ask(0, prompt=range(2, 12), max_tokens=9))
    core.turn()
    assert core.take(Ask(1, "check")) == [Answer(1)]
    assert core.take(Ask(2, "reset")) == [Answer(2, done=False)]
    [answer] = core.take(Ask(9, "rebalance"))
    assert [balance.load for balance in answer.balances] == [[core.engine.num_batches, 0]]
    assert decode_event(encode(answer)) == answer
    [answer] = core.take(Ask(3, "look"))
    [holder] = answer.view.holders
    assert (holder.num_prompt_tokens, holder.num_tokens, holder.num_computed_tokens) == (10, 11, 10)
    assert (len(holder.block_table), answer.view.cached_blocks) == (3, [])
    turns(core)
    [answer] = core.take(Ask(4, "look"))
    assert (answer.view.holders, len(answer.view.cached_blocks)) == ([], 4)
    core.engine.blocks.pool.ref_counts[0] += 1
    assert core.take(Ask(5, "check")) == [Answer(5, error="every reference is somebody's")]


def test_who_keeps_the_common_pace_runs_one_batch_a_turn_and_a_dummy_if_there_is_none():
    engine = EchoEngine(EngineConfig(**CONFIG))
    core = EngineCore(engine, CommonPace())
    core.take(ask(0, max_tokens=2))
    assert not core.is_due, "not before it is told to"
    for num_batches in range(1, 5):
        core.take(Turn())
        report = core.turn()
        assert (engine.num_batches, report.num_turns) == (num_batches, num_batches)
        assert not core.is_due
    assert engine.num_dummies == 2


@pytest.mark.parametrize(
    ("size", "spread", "expected"), [(1, True, OwnPace), (2, False, OwnPace), (2, True, CommonPace)]
)
def test_only_experts_that_are_spread_over_replicas_ask_for_one_pace(size, spread, expected):
    config = EngineConfig(data_parallel_size=size, enable_expert_parallel=spread)
    assert type(make_pace(config)) is expected


def test_what_crosses_the_border_arrives_as_it_was():
    schema = {"type": "object", "properties": {"a": {"minimum": 1}}}
    tokens = {"stop_token_ids": [3], "logit_bias": {4: -1.5}, "allowed_token_ids": [1, 2], "logprobs": -1}
    params = SamplingParams(n=2, seed=-(2**63), stop=["a", "ü"], structured_outputs={"json": schema}, **tokens)
    add = decode_command(encode(Add(1, "r", [5], pack_params(params), -3, "salt")))
    assert SamplingParams(**add.params) == params
    core = new_core()
    core.take(ask(0))
    report = core.turn()
    assert decode_event(encode(report)) == report
    assert isinstance(report, Report)


@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_a_message_cut_short_cannot_be_read(cut):
    with pytest.raises(ValueError):
        decode_command(encode(ask(0))[:cut])
