"""Integers in, logits out: the runner owns the weights, the device and the tokenizer, and knows no sequence.

    model = load_model(config)                  config.model: a folder, or a name that hub.py turns into one
    kv_cache = model.new_kv_cache(...)
    logits = model(batch, kv_cache)             [R, V], float32, of the sampled rows

Loading is where "auto" and None become facts: device, dtype, attention backend, the longest sequence, the number of
blocks. Whoever asks `model.config` afterwards reads numbers. (From level 01.)"""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .attention import choose_attend
from .batch import Batch
from .config import EngineConfig
from .input_batch import to_device
from .kv_cache import KVCache
from .models.config import ModelConfig, read_json, read_model_config, read_token_ids
from .models.decoder import Decoder
from .models.hub import resolve_model
from .models.weights import fill_with_noise, load_weights

CPU_KV_BYTES = 2 << 30  # of a CPU's memory, unless num_blocks says more: 46,000 tokens of the default model
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class ModelRunner:
    def __init__(self, config: EngineConfig, model: Decoder, tokenizer: Any, eos_token_ids: frozenset[int]):
        self.config, self.model, self.model_config = config, model, model.config
        self.vocab_size, self.eos_token_ids, self.tokenizer = model.config.vocab_size, eos_token_ids, tokenizer
        self.device = torch.device(config.device)
        self.forward_s = 0.0  # spent in the model so far

    def new_kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        model, dtype = self.model_config, getattr(torch, self.config.dtype)
        return KVCache(num_blocks, block_size, model.num_layers, model.num_kv_heads, model.head_dim, dtype, self.device)

    def resolve(self, config: EngineConfig) -> EngineConfig:
        """config with this model's facts in the place of "auto" and None: one model can serve several engines."""
        facts = {name: getattr(self.config, name) for name in ("device", "dtype", "load_format", "attention_backend")}
        config = replace(config, **facts, max_model_len=choose_max_model_len(config, self.model_config))
        return replace(config, num_blocks=config.num_blocks or choose_num_blocks(config, self.model_config))

    @torch.inference_mode()
    def __call__(self, batch: Batch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, V] of the sampled rows; keys and values of all T tokens are written to kv_cache."""
        if not batch.token_ids:
            return torch.empty(0, self.vocab_size, device=self.device)
        inputs = to_device(batch, self.device)
        start = self.now()
        logits = self.model(inputs, kv_cache)
        self.forward_s += self.now() - start
        return logits

    def now(self) -> float:
        """Seconds, when the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def decode(self, token_ids: list[int]) -> str:
        """As text, without special tokens; "" if the model came without a tokenizer."""
        return "" if self.tokenizer is None else str(self.tokenizer.decode(token_ids, skip_special_tokens=True))


def load_model(config: EngineConfig) -> ModelRunner:
    """Raises ValueError, naming the flag or file at fault, for what cannot be loaded or does not fit."""
    folder = resolve_model(config.model)
    config, model_config = choose_device(config), read_model_config(folder)
    device, dtype = torch.device(config.device), getattr(torch, config.dtype)
    config = replace(config, max_model_len=choose_max_model_len(config, model_config))
    model = Decoder(model_config, partial(choose_attend, dtype, device), dtype, device)
    with torch.inference_mode():
        if config.load_format == "dummy":
            fill_with_noise(model)
        else:
            load_weights(model, folder)
        model.pack()
    config = replace(config, num_blocks=config.num_blocks or choose_num_blocks(config, model_config))
    tokenizer = load_tokenizer(folder)
    return ModelRunner(config, model, tokenizer, find_eos_token_ids(folder, model_config, tokenizer))


def choose_device(config: EngineConfig) -> EngineConfig:
    """Replace "auto" in device, dtype and attention_backend."""
    has_cuda = torch.cuda.is_available()
    device = ("cuda" if has_cuda else "cpu") if config.device == "auto" else config.device
    if device == "cuda" and not has_cuda:
        raise ValueError("device cuda: there is no CUDA device here (use cpu or auto)")
    if config.attention_backend == "triton":
        raise ValueError("attention_backend triton is not built yet (use torch or auto)")
    auto = "bfloat16" if device == "cuda" else "float32"
    dtype = auto if config.dtype == "auto" else config.dtype
    return replace(config, device=device, dtype=dtype, attention_backend="torch")


def choose_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    longest = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ValueError(f"max_model_len {config.max_model_len} exceeds the model's {longest} positions")
    return config.max_model_len or longest


def choose_num_blocks(config: EngineConfig, model: ModelConfig) -> int:
    """All max_num_seqs at full length if the memory allows; on a CPU one at full length in any case."""
    itemsize = getattr(torch, config.dtype).itemsize
    slot_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * itemsize
    one = -(-config.max_model_len // config.block_size)
    if config.device == "cpu":
        affordable = max(one, CPU_KV_BYTES // (slot_bytes * config.block_size))
        return min(affordable, config.max_num_seqs * one)
    free, total = torch.cuda.mem_get_info()
    budget = int(total * config.gpu_memory_utilization) - (total - free)
    affordable = budget // (slot_bytes * config.block_size)
    if affordable < one:
        raise ValueError(
            f"gpu_memory_utilization {config.gpu_memory_utilization} leaves room for {max(affordable, 0)} blocks; "
            f"max_model_len {config.max_model_len} needs {one}"
        )
    return min(affordable, config.max_num_seqs * one)


def load_tokenizer(folder: Path) -> Any:
    """None if the folder has none."""
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer  # late: it takes a second, and tiny models need none

    return AutoTokenizer.from_pretrained(folder)


def find_eos_token_ids(folder: Path, model: ModelConfig, tokenizer: Any) -> frozenset[int]:
    """What ends a text, by any of the three that may know: generation_config, config, tokenizer."""
    path = folder / "generation_config.json"
    generation = read_token_ids(read_json(path), "eos_token_id") if path.exists() else frozenset()
    own = frozenset() if tokenizer is None or tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    return generation | model.eos_token_ids | own
