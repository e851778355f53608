"""Real processes: experts over replicas, slices and stages give every token the logits of one process."""

import pytest
import torch

from minipaged.parallel.place import Layout
from tests.parallel.expert_jobs import converse, trade, trade_nothing
from tests.parallel.jobs import run, run_alone
from tests.tiny import MOE_KINDS, tiny_model

TOLERANCE = {"atol": 2e-3, "rtol": 0.0}
TEXT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79]
SEQUENCES = [(TEXT, [5, 1, 1, 7, 2]), (TEXT[4:10], [6]), ([], []), (TEXT[::-1], [1, 1, 14])]
LAYOUTS = {
    "EP 2": Layout(num_replicas=2, spread_experts=True),
    "EP 4": Layout(num_replicas=4, spread_experts=True),
    "EP 4, spare slots": Layout(num_replicas=4, spread_experts=True, num_redundant=3),
    "TP 2": Layout(tensor_size=2, spread_experts=True),
    "TP 2 x DP 2": Layout(tensor_size=2, num_replicas=2, spread_experts=True),
    "PP 2 x DP 2": Layout(num_stages=2, num_replicas=2, spread_experts=True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: tiny_model(tmp_path_factory.mktemp(kind), kind) for kind in MOE_KINDS}


@pytest.mark.parametrize("name", LAYOUTS)
def test_wherever_experts_are_a_text_has_the_logits_of_one_process(crew, folders, name):
    layout = LAYOUTS[name]
    for folder in folders.values():
        answers = crew.run(layout, converse, str(folder), SEQUENCES[: layout.num_replicas], (2, 4))
        for replica in range(layout.num_replicas):
            logits, plans, _ = answers[replica * layout.num_ranks + layout.answering_rank]
            token_ids, _ = SEQUENCES[replica]
            if token_ids:
                expected = run_alone(str(folder), token_ids, [len(token_ids)])
                torch.testing.assert_close(torch.tensor(logits), expected, **TOLERANCE)
            assert len(plans) == 2


def test_all_ranks_make_the_same_plan_and_it_is_no_worse(crew, folders):
    layout = LAYOUTS["EP 4, spare slots"]
    plans = [plans for _, plans, _ in crew.run(layout, converse, str(folders["qwen3_moe"]), SEQUENCES, (2, 4))]
    assert all(plan == plans[0] for plan in plans)
    for load, _, before, after in (layer for plan in plans[0] for layer in plan):
        assert before <= after <= 1
        assert sum(load) > 0


def test_without_spreading_every_expert_is_sliced_like_any_mlp(crew, folders):
    for folder in folders.values():
        logits, _, num_bytes = crew.run(Layout(tensor_size=2), run, str(folder), TEXT, [9, 7])[0]
        torch.testing.assert_close(torch.tensor(logits), run_alone(str(folder), TEXT, [16]), **TOLERANCE)
        assert "exchange" not in num_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_rows_are_exchanged_however_many_there_are(crew, dtype):
    answers = crew.run(LAYOUTS["EP 4"], trade, dtype)
    assert answers[0][0] == [[0] * 3] + [[20] * 3] * 3
    assert answers[1][0] == [[1] * 3] + [[11] * 3] * 2 + [[21] * 3] * 3 + [[31] * 3] * 4
    assert [num_bytes for _, num_bytes in answers] == [n * 3 * dtype.itemsize for n in (3, 2, 9, 4)]
    assert crew.run(LAYOUTS["EP 4"], trade_nothing) == [torch.Size([0, 5])] * 4
