"""Tiny random models in real Hugging Face folders, and transformers' own answers to compare with.

    folder = tiny_model(tmp_path, kind="qwen3", num_key_value_heads=1)
    expected = greedy_tokens(folder, [[1, 2, 3]], max_tokens=8)

Weights are seeded and large enough that the best logit leads by a margin that rounding never crosses."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

logging.disable_progress_bar()

VOCAB_SIZE = 96
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 1e4,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 1e4},
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {},
}
MOE_KINDS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True},
}
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def tiny_model(folder: Path, kind: str = "llama", *, rope: str = "default", seed: int = 0, **overrides: Any) -> Path:
    """Save a random model of this kind into folder and return the folder."""
    values = {**SHAPE, "rope_parameters": dict(ROPES[rope]), **(KINDS | MOE_KINDS)[kind], **overrides}
    config = AutoConfig.for_model(kind, **values)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = 1.0 if "embed" in name or "lm_head" in name else 0.3
            parameter.normal_(1.0 if "norm" in name else 0.0, std, generator=generator)
    model.save_pretrained(folder)
    return folder


@cache
def reference_model(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def reference_logits(folder: Path, token_ids: list[int], first_position: int = 0) -> torch.Tensor:
    """transformers' logits at every position, [T, V]."""
    positions = torch.arange(first_position, first_position + len(token_ids))
    logits: torch.Tensor = reference_model(folder)(torch.tensor([token_ids]), position_ids=positions[None]).logits
    return logits[0].float()


@torch.no_grad()
def greedy_tokens(folder: Path, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """What transformers generates greedily for each prompt alone, EOS not stopping it."""
    model = reference_model(folder)
    answers = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers
