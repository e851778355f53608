"""Which layers have experts, as every kind of config says it; what it leaves out is transformers' default."""

import pytest
from transformers import AutoConfig

from minipaged.models.config import parse_model_config
from minipaged.models.expert_config import ExpertConfig
from tests.models.configs import LLAMA, MIXTRAL, QWEN2_MOE, QWEN3_MOE


def experts(raw, **fields):
    return parse_model_config({**raw, **fields}).experts


@pytest.mark.parametrize("raw", [MIXTRAL, QWEN2_MOE, QWEN3_MOE], ids=lambda raw: raw["architectures"][0])
def test_what_a_config_leaves_out_is_what_transformers_assumes(raw):
    config = parse_model_config(raw)
    theirs = AutoConfig.for_model(config.kind, **{key: value for key, value in raw.items() if key != "architectures"})
    ours = config.experts[0]
    assert config.experts == (ours, ours)
    assert ours.num_experts == theirs.num_experts
    assert ours.num_chosen == theirs.num_experts_per_tok
    assert ours.intermediate_size == getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)
    assert ours.renormalize == getattr(theirs, "norm_topk_prob", True)
    assert ours.shared_size == getattr(theirs, "shared_expert_intermediate_size", None)


def test_a_dense_model_has_none_even_if_it_speaks_of_them():
    assert experts(LLAMA, num_experts=8, num_local_experts=8) == (None, None)


def test_every_so_many_layers_and_none_that_is_named_have_experts():
    def sparse(**fields):
        return [layer is not None for layer in experts(QWEN3_MOE, num_hidden_layers=6, **fields)]

    assert sparse() == [True] * 6
    assert sparse(decoder_sparse_step=2) == [False, True] * 3
    assert sparse(decoder_sparse_step=2, mlp_only_layers=[3]) == [False, True, False, False, False, True]
    assert sparse(mlp_only_layers=[0, 5]) == [False, True, True, True, True, False]
    assert sparse(mlp_only_layers=None) == [True] * 6


def test_both_names_of_the_number_of_experts_mean_the_same():
    for name in ("num_experts", "num_local_experts"):
        [expert, _] = experts(QWEN3_MOE, num_experts_per_tok=2, moe_intermediate_size=24, **{name: 6})
        assert expert == ExpertConfig(6, 2, 24, renormalize=False, shared_size=None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts": 0}, "num_experts must be a whole number >= 1, not 0"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok 5 exceeds the 4 experts there are"),
        ({"moe_intermediate_size": -1}, "moe_intermediate_size must be a whole number"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        experts(QWEN3_MOE, **fields)
