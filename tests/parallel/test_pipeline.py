"""Stages hand on what they made, as fast as they can, and keep what is theirs."""

from random import Random

import torch

from minipaged.parallel.place import Layout
from tests.parallel.crew import places
from tests.parallel.jobs import load, run, run_alone
from tests.tiny import tiny_model


def test_a_stage_may_run_ahead_of_the_next(crew, tmp_path):
    """Nobody waits for an answer here: as many batches are under way as the stages let each other run ahead."""
    rng = Random(0)
    folder, tokens = str(tiny_model(tmp_path, num_hidden_layers=3)), [rng.randrange(96) for _ in range(40)]
    logits = crew.run(Layout(num_stages=3), run, folder, tokens, [1] * 40)[-1][0]
    torch.testing.assert_close(torch.tensor(logits), run_alone(folder, tokens, [40]), atol=2e-3, rtol=0.0)


def test_every_layer_is_on_one_stage_with_its_own_keys_and_values(tmp_path):
    folder = tiny_model(tmp_path, num_hidden_layers=5, tie_word_embeddings=True)
    stages = [load(place, folder) for place in places(Layout(num_stages=3))]
    names = [set(stage.checkpoint()) for stage in stages]
    assert [len(stage.layers) for stage in stages] == [len(stage.portion.layers) for stage in stages] == [2, 2, 1]
    assert names[0] & names[2] == {"model.embed_tokens.weight"}  # looked up in the first, multiplied in the last
    assert not names[1] & (names[0] | names[2])
    assert set().union(*names) == set(load(places(Layout())[0], folder).checkpoint())
    assert torch.equal(stages[0].entrance.weight, stages[2].exit.lm_head.weight)
