"""A layer has one MLP for all tokens, or many small ones of which each token is sent to a few.

                    which layers                                       weights of the chosen    for every token besides
    mixtral         all                                                renormalised             nothing
    qwen2_moe       each decoder_sparse_step-th, and none              if norm_topk_prob        a shared expert
    qwen3_moe       that mlp_only_layers names                         if norm_topk_prob        nothing

Invariant: what a config leaves out has the default of its kind in transformers, as in config.py. (From level 07.)"""

from dataclasses import dataclass

from .fields import Json, read_flag, read_size

DEFAULTS: dict[str, Json] = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "qwen2_moe": {
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen3_moe": {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
}


@dataclass(frozen=True)
class ExpertConfig:
    num_experts: int
    num_chosen: int  # by each token
    intermediate_size: int  # of each expert
    renormalize: bool  # the weights of the chosen add up to 1
    shared_size: int | None  # of the expert that every token is sent to, if there is one


def read_experts(kind: str, raw: Json, num_layers: int) -> tuple[ExpertConfig | None, ...]:
    """[L], None where a layer has a single MLP."""
    if kind not in DEFAULTS:
        return (None,) * num_layers
    mixtral, raw = kind == "mixtral", {**DEFAULTS[kind], **raw}
    experts = ExpertConfig(
        num_experts=read_size(raw, "num_local_experts" if "num_local_experts" in raw else "num_experts"),
        num_chosen=read_size(raw, "num_experts_per_tok"),
        intermediate_size=read_size(raw, "intermediate_size" if mixtral else "moe_intermediate_size"),
        renormalize=mixtral or read_flag(raw, "norm_topk_prob"),
        shared_size=read_size(raw, "shared_expert_intermediate_size") if kind == "qwen2_moe" else None,
    )
    if experts.num_chosen > experts.num_experts:
        raise ValueError(
            f"num_experts_per_tok {experts.num_chosen} exceeds the {experts.num_experts} experts there are"
        )
    every, without = (1, ()) if mixtral else (read_size(raw, "decoder_sparse_step", 1), raw.get("mlp_only_layers", ()))
    return tuple(None if i in without or (i + 1) % every else experts for i in range(num_layers))
