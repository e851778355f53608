"""A model is its weights and this one page: shapes, what is scaled, what has a bias, which layers look how far back.

    config.json  ->  ModelConfig(num_heads=9, num_kv_heads=3, head_dim=64, ...)

                    qkv bias   o bias           mlp bias   q/k norm   sliding window
    llama           if asked   with qkv's       if asked   no         never
    mistral         no         no               no         no         every layer, 4096 unless it says otherwise
    qwen2           always     no               no         no         if asked, from layer max_window_layers on
    qwen3           if asked   with qkv's       no         yes        the same
    mixtral         no         no               no         no         every layer, if it has one
    qwen2_moe       unless no  no               no         no         if asked, every other one below max_window_layers
    qwen3_moe       if asked   with qkv's       no         yes        if asked, every layer

The kind decides as much as the flags do: a Qwen2 has biases although its config has no word for them. What a config
leaves out has the default of that kind in transformers. Invariant: what would change the result and is not built here
is refused by name; nothing is silently left out. (From level 01.)"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..checks import check_choice, check_number
from .expert_config import ExpertConfig, read_experts
from .fields import Json, read_flag, read_number, read_size

KINDS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
DEFAULTS: dict[str, Json] = {  # where the kinds differ
    "llama": {"max_position_embeddings": 2048, "eos_token_id": 2},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096, "eos_token_id": 2},
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096},
    "qwen3": {
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "head_dim": 128,
    },
    "mixtral": {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "eos_token_id": 2,
    },
    "qwen2_moe": {
        "num_key_value_heads": 16,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "qkv_bias": True,
    },
    "qwen3_moe": {"num_key_value_heads": 4, "max_position_embeddings": 32768, "sliding_window": 4096},
}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles; `rotary.py` has the formulas."""

    rope_type: str
    theta: float
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0  # llama3, these two
    high_freq_factor: float = 4.0
    attention_factor: float | None = None  # yarn, from here on
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    kind: str  # llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]  # [L], how many keys a token of that layer sees, itself included
    experts: tuple[ExpertConfig | None, ...]  # [L], None: a single MLP
    rope: RopeConfig
    eos_token_ids: frozenset[int]


def read_json(path: Path) -> Json:
    """The object in the file. Raises ValueError with its name when it is missing, broken or something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not an object")
    return value


def read_model_config(folder: Path) -> ModelConfig:
    """The model in a Hugging Face folder. Raises ValueError for what is not built here, naming it and the file."""
    path = folder / "config.json"
    try:
        return parse_model_config(read_json(path))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse_model_config(raw: Json) -> ModelConfig:
    """From config.json, where null may be said too: it is the absence of a window, not the default one."""
    kind = read_kind(raw)
    raw = {key: value for key, value in {**DEFAULTS[kind], **raw}.items() if value is not None}
    refuse_unbuilt(raw)
    num_layers = read_size(raw, "num_hidden_layers")
    bias = kind in ("llama", "qwen3", "qwen3_moe") and read_flag(raw, "attention_bias")
    return ModelConfig(
        kind=kind,
        num_layers=num_layers,
        **read_widths(raw),
        max_position_embeddings=read_size(raw, "max_position_embeddings"),
        rms_norm_eps=read_number(raw, "rms_norm_eps", 1e-6),
        tie_word_embeddings=read_flag(raw, "tie_word_embeddings"),
        qkv_bias=bias or kind == "qwen2" or (kind == "qwen2_moe" and read_flag(raw, "qkv_bias")),
        o_bias=bias,
        mlp_bias=kind == "llama" and read_flag(raw, "mlp_bias"),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        sliding_windows=read_sliding_windows(kind, raw, num_layers),
        experts=read_experts(kind, raw, num_layers),
        rope=read_rope(raw),
        eos_token_ids=read_token_ids(raw, "eos_token_id"),
    )


def read_widths(raw: Json) -> dict[str, int]:
    widths = {key: read_size(raw, key) for key in ("vocab_size", "hidden_size", "intermediate_size")}
    num_heads = read_size(raw, "num_attention_heads")
    num_kv_heads = read_size(raw, "num_key_value_heads", num_heads)
    head_dim = read_size(raw, "head_dim", widths["hidden_size"] // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ValueError(f"{num_heads} heads of {head_dim} over {num_kv_heads} kv heads cannot be grouped and rotated")
    return widths | {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}


def read_kind(raw: Json) -> str:
    known = KINDS | {kind: kind for kind in KINDS.values()}
    names = raw.get("architectures") or [raw.get("model_type")]
    if len(names) != 1 or names[0] not in known:
        raise ValueError(f"architecture {', '.join(map(str, names))} is not built here, only {', '.join(KINDS)}")
    return known[names[0]]


def refuse_unbuilt(raw: Json) -> None:
    """What would be silently ignored otherwise."""
    check_choice("hidden_act", raw.get("hidden_act", "silu"), ("silu", "swish"))
    if "quantization_config" in raw:
        raise ValueError(f"quantization_config {raw['quantization_config']} is not built here")
    if raw.get("rope_interleaved"):
        raise ValueError("rope_interleaved is not built here, only rotation of halves")


def read_sliding_windows(kind: str, raw: Json, num_layers: int) -> tuple[int | None, ...]:
    """A window of W means W keys, the token's own included; None sees all."""
    if kind == "llama":
        return (None,) * num_layers
    none = kind == "qwen2_moe" and raw.get("sliding_window") == 0  # as transformers writes a window that is not used
    window = read_size(raw, "sliding_window") if "sliding_window" in raw and not none else None
    if kind in ("mistral", "mixtral", "qwen3_moe"):
        if "layer_types" in raw:
            raise ValueError(f"layer_types is not built here for a {kind.capitalize()}")
        used = kind != "qwen3_moe" or read_flag(raw, "use_sliding_window")
        return (window if used else None,) * num_layers
    used, first = read_flag(raw, "use_sliding_window"), int(raw.get("max_window_layers", 28))
    slides = [i % 2 == 0 and i < first if kind == "qwen2_moe" else i >= first for i in range(num_layers)]
    types = raw.get("layer_types") or [("full", "sliding")[slide] + "_attention" for slide in slides]
    if len(types) != num_layers:
        raise ValueError(f"layer_types names {len(types)} layers of {num_layers}")
    for i, layer_type in enumerate(types):
        check_choice(f"layer_types[{i}]", layer_type, ("full_attention", "sliding_attention"))
    return tuple(window if used and layer_type == "sliding_attention" else None for layer_type in types)


def read_rope(raw: Json) -> RopeConfig:
    """Under the new key `rope_parameters` or the old `rope_scaling`, and in it under `rope_type` or `type`."""
    rope: Json = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    check_choice("rope_type", rope_type, ROPE_TYPES)
    for where in (raw, rope):
        if where.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(f"partial_rotary_factor {where['partial_rotary_factor']} is not built here")
    numbers = {
        key: value for key, value in rope.items() if key in RopeConfig.__dataclass_fields__ and value is not None
    }
    if rope_type == "default":
        numbers = {}
    elif rope_type in ("llama3", "yarn"):
        trained = numbers.get("original_max_position_embeddings", raw["max_position_embeddings"])
        numbers["original_max_position_embeddings"] = raw.get("original_max_position_embeddings", trained)
    required = {"linear": ["factor"], "llama3": ["factor", "low_freq_factor", "high_freq_factor"], "yarn": ["factor"]}
    for key in required.get(rope_type, []):
        check_number(f"factor {key} of rope_type {rope_type}", numbers.get(key), 0, above_low=True)
    theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
    check_number("rope_theta", theta, 0, above_low=True)
    return RopeConfig(**{**numbers, "rope_type": rope_type, "theta": theta})


def read_token_ids(raw: Json, key: str) -> frozenset[int]:
    """One id, a list of them, or none."""
    value = raw.get(key)
    return frozenset(() if value is None else value if isinstance(value, list) else [value])
