"""Integers in, logits out: the runner owns the weights, the device and the tokenizer, and knows no sequence.

    model = load_model(config)                  config.model: a folder, or a name that hub.py turns into one
    kv_cache = model.new_kv_cache(num_blocks, block_size)
    logits = model(batch, kv_cache)             [R, V], float32, of the sampled rows

Loading is where "auto" and None become facts: device, dtype, attention backend, the longest sequence, the number of
blocks. Whoever asks `model.config` afterwards reads numbers. One step is run before the first request, so that no
request waits for a compiler. (From level 01.)"""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .batch import Batch
from .config import EngineConfig
from .detokenizer import Detokenizer
from .input_batch import to_device
from .kv_cache import KVCache
from .models.config import ModelConfig, read_json, read_model_config, read_token_ids
from .models.decoder import Decoder
from .models.hub import resolve_model
from .models.weights import fill_with_noise, load_weights
from .ops import choose_ops, use_interpreter
from .progress import say
from .structured import Grammars

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CPU_KV_BYTES = 2 << 30  # of a CPU's memory, unless num_blocks says more: 46,000 tokens of the default model
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class ModelRunner:
    def __init__(self, config: EngineConfig, model: Decoder):
        self.config, self.model, self.model_config = config, model, model.config
        self.vocab_size = model.config.vocab_size
        self.eos_token_ids: frozenset[int] = frozenset()
        self.tokenizer: PreTrainedTokenizerFast | None = None
        self.decode = Detokenizer(None)  # "" until there is a tokenizer
        self.grammars = Grammars(None, self.vocab_size, self.eos_token_ids)
        self.device, self.dtype = torch.device(config.device), getattr(torch, config.dtype)
        self.draft: ModelRunner | None = None  # a smaller model that guesses for this one (level 05)
        self.own_forward_s = 0.0

    @property
    def forward_s(self) -> float:
        """Seconds spent in the model so far, and in its draft model."""
        return self.own_forward_s + (self.draft.forward_s if self.draft else 0.0)

    def new_kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        return KVCache(num_blocks, block_size, self.model_config, self.dtype, self.device)

    def resolve(self, config: EngineConfig) -> EngineConfig:
        """config with this model's facts in the place of "auto" and None: one model can serve several engines."""
        facts = {name: getattr(self.config, name) for name in ("device", "dtype", "load_format", "attention_backend")}
        config = replace(config, **facts, max_model_len=choose_max_model_len(config, self.model_config))
        if config.num_blocks is not None:
            check_memory(self, config)
        return replace(config, num_blocks=config.num_blocks or choose_num_blocks(self, config))

    @torch.inference_mode()
    def __call__(self, batch: Batch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, V] of the sampled rows; keys and values of all T tokens are written to kv_cache."""
        if not batch.token_ids:
            return torch.empty(0, self.vocab_size, device=self.device)
        inputs = to_device(batch, self.device)
        start = self.now()
        logits = self.model(inputs, kv_cache)
        self.own_forward_s += self.now() - start
        return logits

    def now(self) -> float:
        """Seconds, when the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def run_one(self, num_tokens: int) -> None:
        """A step of one made-up sequence in memory of its own; it does not count as time in the model."""
        one, spent = list(range(num_tokens)), self.own_forward_s
        batch = Batch([0] * num_tokens, one, one, [0, num_tokens], [num_tokens], [[0]], one[-1:], [0, 1], [], [])
        self(batch, self.new_kv_cache(num_blocks=1, block_size=num_tokens))
        self.own_forward_s = spent


def load_model(config: EngineConfig) -> ModelRunner:
    """Raises ValueError, naming the flag or file at fault, for what cannot be loaded or does not fit."""
    folder = resolve_model(config.model, weights=config.load_format != "dummy")
    model_config = read_model_config(folder)
    config = choose_device(config)
    choose_max_model_len(config, model_config)  # what cannot work is refused before the weights are read
    with ThreadPoolExecutor(1) as pool:
        tokenizer = pool.submit(load_tokenizer, folder)  # mostly imports: they hide behind the weights
        runner = ModelRunner(config, load_decoder(config, model_config, folder))
        warm_up(runner)
        if config.draft_model:
            load_draft(config, runner)
        runner.config = runner.resolve(config)
        runner.tokenizer = tokenizer.result()
        runner.decode = Detokenizer(None if runner.tokenizer is None else runner.tokenizer.backend_tokenizer)
    runner.eos_token_ids = find_eos_token_ids(runner, folder)
    runner.grammars = Grammars(runner.decode.tokenizer, runner.vocab_size, runner.eos_token_ids)
    return runner


def load_draft(config: EngineConfig, target: ModelRunner) -> ModelRunner:
    """config.draft_model, on the target's device, which keeps it. Raises ValueError if the two do not go together."""
    assert config.draft_model is not None
    length = choose_max_model_len(config, target.model_config)
    same = {name: getattr(config, name) for name in ("device", "dtype", "load_format", "attention_backend")}
    try:
        if target.draft and target.draft.config.model == config.draft_model:
            choose_max_model_len(replace(config, max_model_len=length), target.draft.model_config)
            return target.draft
        draft = load_model(EngineConfig(model=config.draft_model, max_model_len=length, num_blocks=1, **same))
    except ValueError as error:
        raise ValueError(f"draft_model {config.draft_model}: {error}") from error
    if draft.vocab_size != target.vocab_size:
        sizes = f"a vocabulary of {draft.vocab_size} tokens, {config.model} one of {target.vocab_size}"
        raise ValueError(f"draft_model {config.draft_model} has {sizes}")
    target.draft = draft
    return draft


def load_decoder(config: EngineConfig, model_config: ModelConfig, folder: Path) -> Decoder:
    device, dtype = torch.device(config.device), getattr(torch, config.dtype)
    model = Decoder(model_config, choose_ops(config.attention_backend, dtype, device), dtype, device)
    with torch.inference_mode():
        if config.load_format == "dummy":
            fill_with_noise(model)
        else:
            load_weights(model, folder)
        model.pack()
    return model


def warm_up(runner: ModelRunner) -> None:
    """Compile what is compiled at its first use, and say so if that takes its time."""
    start = time.monotonic()
    notice = threading.Timer(2.0, say, ["preparing the kernels (they are compiled once per machine) ..."])
    notice.daemon = True
    notice.start()
    try:
        for num_tokens in (1, 2):  # to Triton, a size of one is a type of its own
            runner.run_one(num_tokens)
    finally:
        notice.cancel()
    if (seconds := time.monotonic() - start) > 2:
        say(f"preparing the kernels: done in {seconds:.0f} s")


def choose_device(config: EngineConfig) -> EngineConfig:
    """Replace "auto" in device, dtype and attention_backend."""
    has_cuda = torch.cuda.is_available()
    device = ("cuda" if has_cuda else "cpu") if config.device == "auto" else config.device
    if device == "cuda" and not has_cuda:
        raise ValueError("device cuda: there is no CUDA device here (use cpu or auto)")
    auto = "bfloat16" if device == "cuda" else "float32"
    dtype = auto if config.dtype == "auto" else config.dtype
    fastest = "triton" if device == "cuda" else "torch"
    backend = fastest if config.attention_backend == "auto" else config.attention_backend
    if backend == "triton" and device == "cpu":
        use_interpreter(dtype)
    return replace(config, device=device, dtype=dtype, attention_backend=backend)


def choose_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    longest = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ValueError(f"max_model_len {config.max_model_len} exceeds the model's {longest} positions")
    return config.max_model_len or longest


def choose_num_blocks(runner: ModelRunner, config: EngineConfig) -> int:
    """All max_num_seqs at full length if the memory allows, and on a CPU one at full length in any case."""
    one, block_bytes = -(-config.max_model_len // config.block_size), count_block_bytes(runner, config)
    if config.device == "cpu":
        affordable = max(one, CPU_KV_BYTES // block_bytes)
    else:
        affordable = max(0, free_cuda_bytes(runner, config) // block_bytes)
    if affordable < one:
        share = f"gpu_memory_utilization {config.gpu_memory_utilization} leaves room for {affordable} blocks"
        raise ValueError(f"{share}; one request of max_model_len {config.max_model_len} needs {one}")
    return int(min(affordable, config.max_num_seqs * one))


def count_block_bytes(runner: ModelRunner, config: EngineConfig) -> int:
    """What one block takes, in the draft model's cache too."""
    models = [runner, runner.draft] if runner.draft else [runner]
    return sum(model.new_kv_cache(1, config.block_size).data.nbytes for model in models)


def check_memory(runner: ModelRunner, config: EngineConfig) -> None:
    """Raises ValueError if the blocks asked for could never fit the machine: memory is only missed when it is used."""
    needed = config.num_blocks * count_block_bytes(runner, config)
    if config.device == "cuda":
        there = torch.cuda.mem_get_info(runner.device)[1]
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        blocks = f"num_blocks {config.num_blocks} x block_size {config.block_size}"
        raise ValueError(f"{blocks} need {needed / 1e9:.1f} GB of memory; {config.device} has {there / 1e9:.1f} GB")


def free_cuda_bytes(runner: ModelRunner, config: EngineConfig) -> int:
    """What gpu_memory_utilization leaves for the KV cache once the weights and the largest step have theirs."""
    torch.cuda.reset_peak_memory_stats(runner.device)
    runner.run_one(config.max_num_batched_tokens)
    peak = torch.cuda.max_memory_allocated(runner.device)
    free, total = torch.cuda.mem_get_info(runner.device)
    others = total - free - torch.cuda.memory_reserved(runner.device)
    return int(total * config.gpu_memory_utilization) - peak - others


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerFast | None":
    """None if the folder has none. Raises ValueError for one that is not made of tokenizers' parts."""
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # late: a second that tiny models save

    path = folder / "tokenizer_config.json"
    described = read_json(path).get("tokenizer_class") if path.exists() else None
    # what AutoTokenizer would find too, 1 s later
    known = PreTrainedTokenizerFast if described == "PreTrainedTokenizerFast" else AutoTokenizer
    tokenizer = known.from_pretrained(folder)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(
            f"{folder}: a {type(tokenizer).__name__} cannot decode step by step, no fast tokenizer is there"
        )
    return tokenizer


def find_eos_token_ids(runner: ModelRunner, folder: Path) -> frozenset[int]:
    """What ends a text, by any of the three that may know: generation_config, config, tokenizer."""
    path = folder / "generation_config.json"
    generation = read_token_ids(read_json(path), "eos_token_id") if path.exists() else frozenset()
    own = None if runner.tokenizer is None else runner.tokenizer.eos_token_id
    return generation | runner.model_config.eos_token_ids | (frozenset() if own is None else {own})
