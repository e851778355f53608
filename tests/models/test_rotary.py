"""Angles are transformers' to the last bit; the rotation is of halves."""

import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from minipaged.kernels.rope import rope_spec
from minipaged.models.config import parse_model_config, read_rope
from minipaged.models.rotary import INV_FREQ, Rotary
from tests.models.configs import LLAMA
from tests.tiny import ROPES, SHAPE

CPU = torch.device("cpu")
VARIANTS = {
    "linear": [{}, {"factor": 32.0}],
    "llama3": [{}, {"factor": 32.0, "rope_theta": 5e5, "original_max_position_embeddings": 8192}],
    "yarn": [
        {},
        {"truncate": False},
        {"mscale": 0.7, "mscale_all_dim": 1.1},
        {"attention_factor": 1.2},
        {"beta_fast": 16.0, "beta_slow": 2.0, "rope_theta": 1e6},
    ],
}
CASES = [(rope_type, extra) for rope_type, extras in VARIANTS.items() for extra in extras]


@pytest.mark.parametrize(("rope_type", "extra"), CASES)
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 128])
def test_frequencies_are_those_of_transformers(rope_type, extra, head_dim):
    rope = {**ROPES[rope_type], **extra}
    theirs = AutoConfig.for_model("llama", **{**SHAPE, "head_dim": head_dim, "rope_parameters": dict(rope)})
    expected, expected_scale = ROPE_INIT_FUNCTIONS[rope_type](theirs)
    ours, scale = INV_FREQ[rope_type](read_rope({**SHAPE, "rope_parameters": rope}), head_dim)
    assert torch.equal(ours, expected)
    assert scale == expected_scale


def test_llama3_keeps_fast_pairs_blends_some_and_slows_the_rest():
    inv_freq, _ = INV_FREQ["llama3"](read_rope({**SHAPE, "rope_parameters": ROPES["llama3"]}), 16)
    expected = [1, 0.244385, 0.013042, 0.003953, 0.00125, 0.000395, 0.000125, 0.00004]
    torch.testing.assert_close(inv_freq, torch.tensor(expected), atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("rope_type", list(ROPES))
def test_far_positions_turn_as_in_transformers(rope_type):
    fields = {**SHAPE, "rope_parameters": dict(ROPES[rope_type])}
    config = parse_model_config({**LLAMA, **{key: value for key, value in fields.items() if value is not None}})
    positions = torch.tensor([0, 1, 7, 1000, 1999, 150_000])
    q = torch.randn(6, 4, 16)
    their_angles = LlamaRotaryEmbedding(LlamaConfig(**fields))(q, positions[None])
    expected, _ = apply_rotary_pos_emb(q[None], q[None], *their_angles, unsqueeze_dim=2)
    torch.testing.assert_close(rope_spec(q, *Rotary(config, torch.float32, CPU).cos_sin(positions)), expected[0])


def test_scores_depend_on_the_distance_only():
    rotary = Rotary(parse_model_config(LLAMA), torch.float32, CPU)
    q, k = torch.randn(2, 1, 1, 16)
    near, far = (
        (rope_spec(q, *rotary.cos_sin(torch.tensor([p + 5]))) * rope_spec(k, *rotary.cos_sin(torch.tensor([p])))).sum()
        for p in (0, 900)
    )
    torch.testing.assert_close(near, far, atol=1e-3, rtol=1e-3)
