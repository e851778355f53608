"""How many blocks: what the memory allows, once weights and the largest step have theirs.

    GPU    gpu_memory_utilization x all  -  weights  -  the largest step  =  blocks
    CPU    2 GB, but at least one sequence of full length; memory is only missed when it is used
    both   no more than rank_memory_gb for weights and blocks together, if it is given (level 06)

On a CPU every step takes and gives back the same tens of megabytes; `keep_memory` has them kept. Invariant: blocks that
are asked for and could never fit are refused before anything runs. (From level 01.)"""

import ctypes
import os
from typing import TYPE_CHECKING, NamedTuple

import torch

from .config import EngineConfig
from .models.config import ModelConfig

if TYPE_CHECKING:
    from .runner import ModelRunner

CPU_KV_BYTES = 2 << 30  # of a CPU's memory, unless num_blocks says more: 46,000 tokens of the default model

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_KEPT, MOST_KEPT = 32 << 20, 1 << 30  # bytes; a piece of more than 32 MB is never kept


class Beside(NamedTuple):
    """What a draft model takes of the same memory: its weights, and its keys and values for each block, in bytes."""

    weight_bytes: int = 0
    block_bytes: int = 0


NOBODY = Beside()


def keep_memory() -> None:
    """Have malloc keep what a step gives back, for the next: otherwise every page is fetched from the system anew.

    For 1,024 tokens of the default model that is 62,314 page faults, and none when kept (counted)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc's only
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        libc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def choose_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    longest = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ValueError(f"max_model_len {config.max_model_len} exceeds the model's {longest} positions")
    return config.max_model_len or longest


def choose_num_blocks(runner: "ModelRunner", config: EngineConfig) -> int:
    """All max_num_seqs at full length if the memory allows, and on a CPU one at full length in any case."""
    one, block_bytes = -(-config.max_model_len // config.block_size), count_block_bytes(runner, config)
    if config.device == "cpu":
        free, limit = max(one * block_bytes, CPU_KV_BYTES), ""
    else:
        free, limit = free_cuda_bytes(runner, config), f"gpu_memory_utilization {config.gpu_memory_utilization}"
    if config.rank_memory_gb is not None and (left := rank_bytes(config) - count_weight_bytes(runner, config)) < free:
        free, limit = left, f"rank_memory_gb {config.rank_memory_gb}"
    affordable = max(0, free // block_bytes)
    if affordable < one:
        needed = f"one request of max_model_len {config.max_model_len} needs {one}"
        raise ValueError(f"{limit} leaves room for {affordable} blocks; {needed}")
    return min(affordable, config.max_num_seqs * one)


def rank_bytes(config: EngineConfig) -> int:
    """rank_memory_gb, which was given."""
    assert config.rank_memory_gb is not None
    return int(config.rank_memory_gb * 1e9)


def check_weights(weight_bytes: int, config: EngineConfig) -> None:
    """Raises ValueError, before any is read, if the weights alone are more than a rank may hold."""
    if config.rank_memory_gb is not None and weight_bytes > rank_bytes(config):
        raise ValueError(f"the weights are {weight_bytes / 1e9:.2f} GB, and rank_memory_gb is {config.rank_memory_gb}")


def count_block_bytes(runner: "ModelRunner", config: EngineConfig) -> int:
    """What one block takes, in the draft model's cache too."""
    return runner.new_kv_cache(1, config.block_size).num_bytes + find_beside(runner, config).block_bytes


def count_weight_bytes(runner: "ModelRunner", config: EngineConfig) -> int:
    """The draft model's too."""
    return runner.model.num_weight_bytes + find_beside(runner, config).weight_bytes


def find_beside(runner: "ModelRunner", config: EngineConfig) -> Beside:
    """A draft model of the runner's own, or the one that it was told of."""
    draft = runner.drafts.get(config.draft_model or "")
    return runner.beside if draft is None else measure(draft, config)


def measure(draft: "ModelRunner", config: EngineConfig) -> Beside:
    return Beside(draft.model.num_weight_bytes, draft.new_kv_cache(1, config.block_size).num_bytes)


def check_memory(runner: "ModelRunner", config: EngineConfig) -> None:
    """Raises ValueError if the blocks asked for could never fit the machine: memory is only missed when it is used."""
    needed = config.num_blocks * count_block_bytes(runner, config)
    if config.device == "cuda":
        there = torch.cuda.mem_get_info(runner.device)[1]
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    blocks = f"num_blocks {config.num_blocks} x block_size {config.block_size}"
    both = needed + count_weight_bytes(runner, config)
    if config.rank_memory_gb is not None and both > rank_bytes(config):
        sizes = f"{blocks} and the weights are {both / 1e9:.2f} GB"
        raise ValueError(f"{sizes}, and rank_memory_gb is {config.rank_memory_gb}")
    if needed > there:
        raise ValueError(f"{blocks} need {needed / 1e9:.1f} GB of memory; {config.device} has {there / 1e9:.1f} GB")


def free_cuda_bytes(runner: "ModelRunner", config: EngineConfig) -> int:
    """What gpu_memory_utilization leaves for the KV cache once weights, the largest step and recordings have theirs.

    The largest step is run: as many tokens as it may have, and as many rows, whose logits are drawn from."""
    num_tokens, recorded = config.max_num_batched_tokens, 0
    torch.cuda.reset_peak_memory_stats(runner.device)
    runner.run_one(num_tokens, min(num_tokens, config.max_num_seqs))
    peak = torch.cuda.max_memory_allocated(runner.device)
    for model in (runner, *runner.drafts.values()):
        model.forward.reserve(model.new_kv_cache(1, config.block_size))
        recorded += model.forward.num_bytes
    free, total = torch.cuda.mem_get_info(runner.device)
    others = total - free - torch.cuda.memory_reserved(runner.device)
    return int(total * config.gpu_memory_utilization) - peak - recorded - others
