"""Two replicas in processes that share experts say what one process says, whoever has work, before and after experts
moved; started once for all that is asked of them."""

import pytest

from minipaged.config import EngineConfig
from minipaged.engine import Engine
from minipaged.parallel.balance import place_evenly
from minipaged.parallel.data_parallel import DataParallelEngine
from minipaged.sampling_params import SamplingParams

from ..tiny import tiny_model
from ..tiny_tokenizer import tiny_tokenizer

MEMORY = {"num_blocks": 24, "block_size": 4, "max_model_len": 64, "max_num_batched_tokens": 16}
SHARED = {"data_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True, "num_redundant_experts": 2}
TEXT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43]
WAVES = {
    "only one replica has work": [(TEXT, 6)],
    "one has work longer than the other": [(TEXT[:5], 1), (TEXT[2:9], 9)],
    "and the other way round": [(TEXT[:5], 9), (TEXT[2:9], 1)],
    "more than fits, in chunks, with common beginnings": [(TEXT * 2 + [i], 12) for i in range(7)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_tokenizer(tiny_model(tmp_path_factory.mktemp("shared"), "qwen3_moe", num_experts=5)))


@pytest.fixture(scope="module")
def alone(folder):
    return Engine(EngineConfig(model=folder, **MEMORY))


@pytest.fixture(scope="module")
def shared(folder):
    engine = DataParallelEngine(EngineConfig(model=folder, num_speculative_tokens=2, **MEMORY, **SHARED))
    yield engine
    engine.shutdown()


def answers(engine, wave):
    ids = [
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)) for prompt, n in wave
    ]
    said = {}
    while engine.has_unfinished_requests():
        said.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
    return [said[i] for i in ids]


def num_plans(engine):
    """One for each wave, made when the last replica has said that its last turn is over. Whoever comes when all others
    have left begins a wave: how many there are is for the clock to say."""
    conductor = engine.replicas.conductor
    while not conductor.is_at_rest(engine.replicas) or conductor.num_planned < conductor.num_turns:
        engine.check_integrity()
    engine.check_integrity()  # answered behind what was asked before
    return len(engine.balances)


@pytest.mark.parametrize("name", WAVES)
def test_a_wave_says_what_one_process_says(name, shared, alone):
    before = num_plans(shared)
    assert answers(shared, WAVES[name]) == answers(alone, WAVES[name])
    assert num_plans(shared) > before, "experts moved when the wave was over"


def test_each_layers_rows_are_counted_and_no_plan_is_worse(shared):
    answers(shared, [(TEXT, 2)])
    before = num_plans(shared)
    answers(shared, [(TEXT[::-1], 1)])  # nobody has read that before
    assert num_plans(shared) == before + 1
    latest, earlier = shared.balances[-1], shared.balances[-2]
    assert [sum(balance.load) for balance in latest] == [3 * len(TEXT)] * 2, "three of five experts for each token"
    assert shared.balances[0][0].old == place_evenly(5, 2, num_redundant=2)
    for before, after in zip(earlier, latest, strict=True):
        assert after.old == before.new
        assert after.before <= after.after <= 1
    assert any(balance.num_moved for balances in shared.balances for balance in balances)
