"""Integers in, logits out: the runner owns the weights and the device, and knows no sequence.

    kv_cache = model.new_kv_cache(num_blocks, block_size)
    logits = model(batch, kv_cache)             [R, V], float32, of the sampled rows
    tokens = model.sample(logits, batch.rows)   drawn as the backend draws

It comes from `loading.py`, which made facts of every "auto" and None: whoever asks `model.config` reads numbers.
(From level 01.)"""

from dataclasses import replace

import torch
from torch import Tensor

from .batch import Batch
from .clock import choose_clock
from .config import EngineConfig
from .graphs import Eager, choose_forward
from .input_batch import to_device
from .kv_cache import NARROW, KVCache
from .memory import NOBODY, check_memory, choose_max_model_len, choose_num_blocks
from .models.decoder import Decoder
from .sampling import choose_sample
from .vocabulary import Vocabulary

FACTS = (  # of a model, not of an engine
    "device",
    "dtype",
    "load_format",
    "attention_backend",
    "quantization",
    "kv_cache_dtype",
    "enforce_eager",
)


class ModelRunner:
    def __init__(self, config: EngineConfig, model: Decoder, vocabulary: Vocabulary):
        self.config, self.model, self.model_config = config, model, model.config
        self.vocabulary = vocabulary
        self.device, self.dtype = torch.device(config.device), getattr(torch, config.dtype)
        self.kv_dtype = NARROW.get(config.kv_cache_dtype, self.dtype)
        self.sample = choose_sample(config.attention_backend)
        self.drafts: dict[str, ModelRunner] = {}  # smaller models that guess for this one, by name (level 05)
        self.beside = NOBODY  # of those that are not ours, but in the same memory (level 06)
        self.clock = choose_clock(self.device)
        self.eager = Eager(model, self.device, self.clock)
        self.forward = choose_forward(self.eager, config, can_record=not model.experts, vocab_size=self.vocab_size)

    @property
    def vocab_size(self) -> int:
        return self.model_config.vocab_size

    @property
    def forward_s(self) -> float:
        """Seconds spent in the model so far, and in its draft models."""
        return self.own_forward_s + sum(draft.forward_s for draft in self.drafts.values())

    @property
    def own_forward_s(self) -> float:
        return self.clock.seconds

    def new_kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        head_dim = self.model_config.head_dim
        return KVCache(num_blocks, block_size, self.model.portion, head_dim, self.kv_dtype, self.device)

    def resolve(self, config: EngineConfig) -> EngineConfig:
        """config with this model's facts in the place of "auto" and None: one model can serve several engines."""
        facts = {name: getattr(self.config, name) for name in FACTS}
        config = replace(config, **facts, max_model_len=choose_max_model_len(config, self.model_config))
        if config.num_blocks is not None:
            check_memory(self, config)
        return replace(config, num_blocks=config.num_blocks or choose_num_blocks(self, config))

    @torch.inference_mode()
    def __call__(self, batch: Batch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, V] of the sampled rows; keys and values of all T tokens are written to kv_cache.

        Without a token nothing is read or written, but ranks that have some find this one's experts at work."""
        if not batch.token_ids:
            self.model.idle()
            return torch.empty(0, self.vocab_size, device=self.device)
        return self.forward(batch, kv_cache)

    @torch.inference_mode()
    def run_one(self, num_tokens: int, num_rows: int = 1) -> Tensor:
        """A step of one made-up sequence in memory of its own -> logits [num_rows, V] of its last tokens.

        It counts neither as time nor as load; blocks have the engine's size, as the kernels are compiled for it."""
        one, block_size = list(range(num_tokens)), self.config.block_size
        table = list(range(-(-num_tokens // block_size)))
        batch = Batch(
            [0] * num_tokens, one, one, [0, num_tokens], [num_tokens], [table], one[-num_rows:], [0, 1], [], []
        )
        logits = self.model(to_device(batch, self.device), self.new_kv_cache(len(table), block_size))
        self.model.forget_load()
        return logits
