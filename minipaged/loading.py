"""Loading is where "auto" and None become facts: device, dtype, backend, the longest sequence, the number of blocks.

    config.model     a folder, or a name that hub.py turns into one
    load_model(config) -> ModelRunner       weights in place, kernels compiled, vocabulary beside it

One step is run before the first request, so that no request waits for a compiler. (From level 01.)"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

from .batch import Row
from .config import EngineConfig
from .kernels.jit import agree_on_threads
from .kernels.linear_int8 import FEW
from .memory import check_weights, choose_max_model_len, keep_memory
from .models.config import ModelConfig, read_model_config
from .models.decoder import Decoder
from .models.hub import find_model
from .models.weights import fill_with_noise, load_weights
from .ops import choose_ops, use_interpreter
from .parallel.place import Place
from .progress import say
from .runner import FACTS, ModelRunner
from .sampling_params import SamplingParams
from .tokenizer import load_vocabulary, wordless
from .vocabulary import Vocabulary

# tokens: some loops of a CPU are for few rows only; to Triton one is a type of its own, and a prompt has its tiles
WARM_UP = {"cpu": (1, 2, FEW + 1), "cuda": (1, 2, 64)}
FP8 = (8, 9)  # the least compute capability with e4m3 numbers
WISHES = (  # what a sampler may have to be compiled for
    SamplingParams(top_k=2, top_p=0.5),
    SamplingParams(logit_bias={0: 1.0}),
    SamplingParams(allowed_token_ids=(0,)),
    SamplingParams(logit_bias={0: 1.0}, allowed_token_ids=(0,)),
)


def load_model(config: EngineConfig, place: Place | None = None) -> ModelRunner:
    """The whole model, or the part that belongs to a place among ranks, where nobody asks for words.

    Raises ValueError, naming the flag or file at fault, for what cannot be loaded or does not fit."""
    read_vocabulary = load_vocabulary if place is None else wordless
    folder = find_model(config)
    model_config = read_model_config(folder)
    config = choose_device(config)
    choose_max_model_len(config, model_config)  # what cannot work is refused before the weights are read
    check_experts(config, model_config)
    with ThreadPoolExecutor(1) as pool:
        vocabulary = pool.submit(read_vocabulary, folder, model_config)  # mostly imports: they hide behind the weights
        decoder = load_decoder(config, model_config, folder, place or Place.alone())
        runner = ModelRunner(config, decoder, vocabulary.result())
    warm_up(runner)
    if config.draft_model:
        load_draft(config, runner)
    runner.config = runner.resolve(config)
    return runner


def check_experts(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ValueError if there are none to spread."""
    if config.enable_expert_parallel and not any(model.experts):
        raise ValueError(f"enable_expert_parallel spreads experts, and {config.model} has none")


class Target(Protocol):
    """Whoever draft models guess for; `drafts` is where they are kept, by name."""

    model_config: ModelConfig
    drafts: dict[str, ModelRunner]

    @property
    def vocabulary(self) -> Vocabulary: ...


def load_draft(config: EngineConfig, target: Target) -> ModelRunner:
    """config.draft_model, on the target's device, which keeps it. Raises ValueError if the two do not go together."""
    assert config.draft_model is not None
    length = choose_max_model_len(config, target.model_config)
    same = {name: getattr(config, name) for name in FACTS}
    try:
        if known := target.drafts.get(config.draft_model):
            choose_max_model_len(replace(config, max_model_len=length), known.model_config)
            return known
        draft = load_model(EngineConfig(model=config.draft_model, max_model_len=length, num_blocks=1, **same))
    except ValueError as error:
        raise ValueError(f"draft_model {config.draft_model}: {error}") from error
    if draft.vocab_size != (size := target.vocabulary.size):
        sizes = f"a vocabulary of {draft.vocab_size} tokens, {config.model} one of {size}"
        raise ValueError(f"draft_model {config.draft_model} has {sizes}")
    target.drafts[config.draft_model] = draft
    return draft


def load_decoder(config: EngineConfig, model_config: ModelConfig, folder: Path, place: Place) -> Decoder:
    device, dtype = torch.device(config.device), getattr(torch, config.dtype)
    if config.device == "cpu":
        keep_memory()
        agree_on_threads()
    ops = choose_ops(config.attention_backend, dtype, device, config.kv_cache_dtype)
    model = Decoder(model_config, ops, dtype, device, place, config.quantization)
    check_weights(model.num_weight_bytes, config)
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
        for num_tokens in WARM_UP[runner.config.device]:
            logits = runner.run_one(num_tokens)
        for wishes in WISHES:
            runner.sample(logits, [Row(wishes, seed=0, position=1)][: len(logits)])  # whoever has none draws nothing
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
    check_fp8(config.quantization, device)
    if device == "cpu" and dtype != "float32":
        warn_of_slowness(dtype)
    fastest = "triton" if device == "cuda" else "torch"
    backend = fastest if config.attention_backend == "auto" else config.attention_backend
    if backend == "triton" and device == "cpu":
        use_interpreter(dtype)
    if config.kv_cache_dtype == "fp8":
        check_fp8_cache(device, backend)
    return replace(config, device=device, dtype=dtype, attention_backend=backend)


def check_fp8(quantization: str, device: str) -> None:
    """Raises ValueError if floats of 8 bits are asked for where nothing reads them."""
    if quantization != "fp8":
        return
    if device == "cpu" or torch.version.hip or torch.cuda.get_device_capability() < FP8:
        here = "this is a CPU" if device == "cpu" else f"this is a {torch.cuda.get_device_name()}"
        raise ValueError(f"quantization fp8 needs an NVIDIA GPU of compute capability 8.9 or more; {here} (use int8)")


@cache
def warn_of_slowness(dtype: str) -> None:
    """Once, where a CPU takes such numbers apart before it multiplies them."""
    cpu, onednn = torch.cpu, torch.ops.mkldnn
    if dtype == "bfloat16":
        native = cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported()
    else:
        native = onednn._is_mkldnn_fp16_supported()
    if not native:
        say(f"dtype {dtype}: this CPU has no products of such numbers, float32 is several times as fast")


def check_fp8_cache(device: str, backend: str) -> None:
    """Raises ValueError if the card has no such numbers; a CPU has none either, but can do without, slowly."""
    if (device, backend) == ("cpu", "triton"):
        raise ValueError("kv_cache_dtype fp8: Triton's interpreter rounds 127.9 to 64 in e4m3 (use int8)")
    if device == "cpu":
        say("kv_cache_dtype fp8 on a CPU: plain tensor operations read it, slowly (int8 is read by compiled loops)")
    elif torch.version.hip or torch.cuda.get_device_capability() < FP8:
        here = f"this is a {torch.cuda.get_device_name()}"
        raise ValueError(f"kv_cache_dtype fp8 needs an NVIDIA GPU of compute capability 8.9 or more; {here} (use int8)")
