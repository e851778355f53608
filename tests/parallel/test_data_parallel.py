"""Several engines behind one desk say what one would say, in every output; one that dies takes only its own along."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from levels import load
from minipaged import LLM, SamplingParams
from minipaged.config import EngineConfig
from minipaged.core.messages import Answer, Holder, View
from minipaged.core.replicas import EngineDeadError
from minipaged.engine import Engine
from minipaged.parallel.data_parallel import DataParallelEngine

from ..fake_model import FakeModel
from ..tiny import tiny_model
from ..tiny_tokenizer import tiny_tokenizer
from ..worlds import new_model, random_work

HERE = {"distributed_executor_backend": "uniproc"}
CONFIG = {"num_blocks": 32, "block_size": 4, "max_model_len": 64}


def told(output):
    """Everything that a reader of an output may ask it for."""
    choices = [(said, said.text, said.logprobs, said.cumulative_logprob) for said in output.outputs]
    return output, output.num_cached_tokens, output.num_preemptions, output.prompt_logprobs, choices


def visit(engine, visits, rng=None):
    """Everybody at once, some leaving early if there is an rng; what each step told."""
    for i, (prompt, params, priority) in enumerate(visits):
        engine.add_request(prompt, params, str(i), priority)
    steps = []
    while engine.has_unfinished_requests():
        steps.append([told(output) for output in engine.step()])
        engine.check_integrity()
        if rng and rng.random() < 0.1:
            engine.abort(str(rng.randrange(len(visits))))
    return steps


def answers(steps):
    last = {output[0].request_id: output for outputs in steps for output in outputs}
    return [
        [(said.token_ids, said.finish_reason, said.stop_reason, text) for said, text, *_ in last[name][4]]
        for name in sorted(last)
    ]


def test_every_output_is_what_the_engine_itself_would_have_told():
    for seed in range(60):
        config, visits = random_work(Random(seed), 6)
        alone, fronted = Engine(config, new_model()), DataParallelEngine(config, new_model())
        assert visit(fronted, visits, Random(seed)) == visit(alone, visits, Random(seed)), (seed, config, visits)
        for own, written in zip(alone.trace.steps, fronted.trace.steps, strict=True):
            assert replace(written, t_s=own.t_s, replica=None) == own


@pytest.mark.parametrize("router", ["load", "prefix"])
def test_what_is_said_does_not_depend_on_the_number_of_replicas(router):
    num_on_second = 0
    for seed in range(40):
        config, visits = random_work(Random(seed), 6)
        visits = [v._replace(params=replace(v.params, seed=None)) for v in visits]  # seeds are given out in front
        several = replace(config, data_parallel_size=2, data_parallel_router=router, **HERE)
        fronted = DataParallelEngine(several, new_model())
        assert answers(visit(fronted, visits)) == answers(visit(Engine(config, new_model()), visits)), (
            seed,
            config,
            visits,
        )
        num_on_second += sum(step.replica == 1 for step in fronted.trace.steps)
    assert num_on_second > 100


def greedy(max_tokens, **options):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def test_load_is_shared_and_written_down_as_one_engines():
    engine = DataParallelEngine(EngineConfig(data_parallel_size=2, **CONFIG, **HERE), FakeModel())
    for i in range(6):
        engine.add_request([2 + i] * 5, greedy(4))
    engine.step()
    first, second = engine.trace.steps
    assert (first.num_scheduled_tokens.keys(), second.num_scheduled_tokens.keys()) == ({"0", "2", "4"}, {"1", "3", "5"})
    assert (first.replica, second.replica, second.step) == (0, 1, 1)
    assert (second.num_running, second.num_blocks, second.num_free_blocks) == (6, 64, 64 - 12)
    assert {block for seq in engine.holders for block in seq.block_table} == {0, 1, 2, 3, 4, 5, 32, 33, 34, 35, 36, 37}
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.trace.steps[-1].num_free_blocks == 64
    assert engine.reset_prefix_cache()


@pytest.mark.parametrize("is_used_again", [False, True])
def test_an_abort_is_of_a_request_and_not_of_whoever_had_its_id_before(is_used_again):
    engine = DataParallelEngine(EngineConfig(data_parallel_size=2, **CONFIG, **HERE), FakeModel())
    engine.add_request([2, 3], greedy(1), "a")
    engine.heard += engine.replicas.poll()  # as beside a question: it has ended, and nobody was told
    if is_used_again:
        engine.add_request([4, 5], greedy(9), "a")
    engine.abort("a")
    told = engine.step()
    assert [len(output.outputs[0].token_ids) for output in told] == [1] * is_used_again
    assert not engine.has_unfinished_requests()


def test_blocks_are_numbered_behind_those_of_replicas_before_whatever_the_sizes():
    engine = DataParallelEngine(EngineConfig(data_parallel_size=2, **CONFIG, **HERE), FakeModel())
    views = [Answer(0, view=View(n, [Holder("a", 0, 1, 1, 1, [1])], [], [])) for n in (7, 5)]
    engine.ask = lambda what: views
    assert [seq.block_table for seq in engine.holders] == [[1], [8]]


def test_the_longest_match_finds_more_than_the_least_loaded():
    found = {}
    for router in ("load", "prefix"):
        config = EngineConfig(data_parallel_size=2, data_parallel_router=router, **CONFIG, **HERE)
        engine = DataParallelEngine(config, FakeModel())
        for i in range(12):
            engine.add_request([2 + i % 3] * 16 + [i], greedy(2))
        while engine.has_unfinished_requests():
            engine.step()
        steps = engine.trace.steps
        found[router] = sum(sum(step.cached_tokens.values()) for step in steps)
        assert {step.replica for step in steps} == {0, 1}
    assert found == {"load": 6 * 16, "prefix": 9 * 16}  # three beginnings, read by each replica or by one


def test_a_broken_invariant_is_named_whichever_replica_it_is_in():
    engine = DataParallelEngine(EngineConfig(data_parallel_size=2, **CONFIG, **HERE), FakeModel())
    engine.check_integrity()
    engine.replicas.wire.cores[1].engine.blocks.pool.ref_counts[3] += 1
    with pytest.raises(AssertionError, match="every reference is somebody's"):
        engine.check_integrity()


def test_experts_are_not_spread_over_replicas_that_share_a_process():
    config = EngineConfig(data_parallel_size=2, enable_expert_parallel=True, **CONFIG, **HERE)
    with pytest.raises(ValueError, match="enable_expert_parallel spreads experts over processes"):
        DataParallelEngine(config, FakeModel())


def test_torchrun_does_not_go_with_engines_in_processes_of_their_own():
    with pytest.raises(
        ValueError, match="torchrun's ranks join no engine that has a process of its own: use mp or ray"
    ):
        DataParallelEngine(EngineConfig(data_parallel_size=2, distributed_executor_backend="torchrun"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_tokenizer(tiny_model(tmp_path_factory.mktemp("model")))


PROMPTS = [[7, 8, 9], [5, 6], [40] * 11, [7, 8, 9, 10, 11, 12, 13, 14, 15], [60 + i % 7 for i in range(24)]]
TIGHT = {**CONFIG, "num_blocks": 12, "max_num_batched_tokens": 7, "num_speculative_tokens": 2}


def test_replicas_in_processes_say_what_one_engine_says_and_one_may_die(folder):
    """One start for all of it: it takes longer than everything else here."""
    wishes = [
        greedy(10),
        greedy(8, n=2, logprobs=2, prompt_logprobs=1),
        SamplingParams(max_tokens=10, ignore_eos=True),
        SamplingParams(max_tokens=9, temperature=2.0, stop=["w7", "w9 w"], min_tokens=2),
        greedy(12),
    ]
    alone, llm = LLM(folder, **TIGHT), LLM(folder, data_parallel_size=2, **TIGHT)
    pids = [link.process.pid for link in llm.engine.replicas.wire.links]
    expected, outputs = alone.generate(PROMPTS, wishes), llm.generate(PROMPTS, wishes)
    assert [said(output) for output in outputs] == [said(output) for output in expected]
    assert [list(scores) for scores in outputs[1].outputs[1].logprobs] == [
        list(s) for s in expected[1].outputs[1].logprobs
    ]
    assert outputs[1].outputs[0].cumulative_logprob == pytest.approx(expected[1].outputs[0].cumulative_logprob)
    assert len(outputs[1].prompt_logprobs) == 2
    assert any(step.preempted for step in llm.engine.trace.steps) or any(
        step.draft_tokens for step in llm.engine.trace.steps
    )
    llm.engine.check_integrity()
    check_death(llm.engine, pids)
    llm.engine.shutdown()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def said(output):
    return [(choice, choice.text) for choice in output.outputs]


def add_two_each(engine, pids):
    """Four requests, while one process of each replica is held up: nobody ends before all are there."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for i in range(4):
        engine.add_request(PROMPTS[i], greedy(30), f"r{i}")


def check_death(engine, pids):
    """One replica is killed while both have work; then the other."""
    add_two_each(engine, pids)
    os.kill(pids[1], signal.SIGKILL)
    os.kill(pids[0], signal.SIGCONT)
    ends = {}
    while engine.has_unfinished_requests():
        ends.update({output.request_id: output for output in engine.step() if output.finished})
    reasons = [ends[f"r{i}"].outputs[0].finish_reason for i in range(4)]
    assert sorted(reasons) == ["error", "error", "length", "length"]
    errors = {output.error for output in ends.values()} - {None}
    assert errors == {f"replica 1 died: its process {pids[1]} was killed by SIGKILL"}
    engine.add_request(PROMPTS[0], greedy(3), "again")
    while engine.has_unfinished_requests():
        [output] = engine.step() or [None]
    assert output.outputs[0].finish_reason == "length"
    os.kill(pids[0], signal.SIGKILL)
    while not engine.replicas.error:
        engine.heard += engine.replicas.poll(1)
    with pytest.raises(EngineDeadError, match="replica 0 died"):
        engine.add_request(PROMPTS[0], greedy(3))


def children(pid):
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_replicas_of_two_ranks_each_say_what_one_engine_says_and_none_outlives_its_rank(folder):
    """Six processes: two cores, each the driver of two ranks."""
    llm = LLM(folder, data_parallel_size=2, tensor_parallel_size=2, **TIGHT)
    wishes = [greedy(10), greedy(8, n=2), greedy(6), SamplingParams(max_tokens=10, ignore_eos=True), greedy(5)]
    expected = LLM(folder, **TIGHT).generate(PROMPTS, wishes)
    assert [said(output) for output in llm.generate(PROMPTS, wishes)] == [said(output) for output in expected]
    cores = [link.process.pid for link in llm.engine.replicas.wire.links]
    ranks = [children(core) for core in cores]
    assert [len(pids) for pids in ranks] == [2, 2]
    add_two_each(llm.engine, [ranks[0][1], ranks[1][1]])  # a rank of each
    os.kill(ranks[1][1], signal.SIGKILL)
    moment, ends = time.monotonic(), {}
    while not any(output.error for output in ends.values()):
        ends.update({output.request_id: output for output in llm.engine.step() if output.finished})
    assert time.monotonic() - moment < 5
    os.kill(ranks[0][1], signal.SIGCONT)
    while llm.engine.has_unfinished_requests():
        ends.update({output.request_id: output for output in llm.engine.step() if output.finished})
    assert sorted(ends[f"r{i}"].outputs[0].finish_reason for i in range(4)) == ["error", "error", "length", "length"]
    [error] = {output.error for output in ends.values()} - {None}
    assert error.startswith("replica 1 died: RankError: rank 1")
    llm.engine.shutdown()
    assert not any(is_running(pid) for pid in [*cores, *ranks[0], *ranks[1]])


def is_running(pid):
    """An orphan that is dead waits for whoever adopted it: that is not ours to mend."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_level_07_is_made_of_level_06():
    level = load(7)
    assert (level.Engine, level.Replica) == (DataParallelEngine, Engine)
