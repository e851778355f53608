"""A mixture of experts small enough to make on the spot: random weights, a tokenizer of bytes, nothing to fetch.

    python -m minipaged.models.make_moe DIR [--kind qwen3_moe] [--num-experts 8]

It has nothing to say, but everything an engine meets in a real one: a router, experts of which some are asked much more
often than others, a chat template. All embeddings lean a little the same way, and so do the routers' rows of the first
experts: these are the hot ones. The same arguments give the same files, bit for bit. (From level 07.)"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from ..cli import DONE, Parser, guarded, leave
from ..ops import choose_ops
from .config import parse_model_config
from .decoder import Decoder

ARCHITECTURES = {
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
SPECIAL = ("<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ADDS = ("o_proj.weight", "down_proj.weight", "w2.weight")
LEAN, HEAT = 0.3, 0.1  # of embeddings, and of the hottest expert, along the direction that all words share


def make_moe(folder: Path, kind: str = "qwen3_moe", num_experts: int = 8, seed: int = 0) -> Path:
    """Write a model into folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = describe(kind, num_experts)
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    save_file(make_weights(raw, seed), folder / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer().save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[1], "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=1))
    return folder


def describe(kind: str, num_experts: int) -> dict[str, Any]:
    """config.json. Words are the 256 bytes and two special ones."""
    experts = {"num_local_experts": num_experts, "intermediate_size": 128}
    if kind != "mixtral":
        experts = {"num_experts": num_experts, "moe_intermediate_size": 128, "intermediate_size": 256}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": 256 + len(SPECIAL),
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "num_experts_per_tok": min(2, num_experts),
        "norm_topk_prob": True,
        "shared_expert_intermediate_size": 128,
        "eos_token_id": 257,
        "bos_token_id": None,
        "tie_word_embeddings": False,
        **experts,
    }


def make_weights(raw: dict[str, Any], seed: int) -> dict[str, Tensor]:
    config = parse_model_config(raw)
    shapes = Decoder(
        config, choose_ops("torch", torch.float32, torch.device("cpu")), torch.float32, torch.device("cpu")
    )
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(config.hidden_size, generator=generator)
    weights = {}
    for name, (memory, _) in sorted(shapes.checkpoint().items()):
        weight = torch.randn(memory.shape, generator=generator)
        if name.endswith("norm.weight"):
            weight = torch.ones(memory.shape)
        elif "embed_tokens" in name:
            weight += LEAN * shared
        elif "lm_head" not in name:
            # what a layer adds is small beside what is there, or soon all words would look alike
            weight *= (0.5 if name.endswith(ADDS) else 2.0) * memory.shape[-1] ** -0.5
        if name.endswith(("mlp.gate.weight", "block_sparse_moe.gate.weight")):
            weight += HEAT * shared / (1 + torch.arange(len(weight)))[:, None]
        weights[name] = weight
    return weights


def make_tokenizer() -> Tokenizer:
    """A token for every byte, and the two that frame a message."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def main() -> int:
    parser = Parser(prog="python -m minipaged.models.make_moe", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--kind", choices=list(ARCHITECTURES), default="qwen3_moe")
    parser.add_argument("--num-experts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    args = parser.parse_args()

    def work() -> int:
        print(make_moe(args.folder, args.kind, args.num_experts, args.seed))
        return DONE

    return guarded(parser.prog, args.debug, work)


if __name__ == "__main__":
    leave(main)
