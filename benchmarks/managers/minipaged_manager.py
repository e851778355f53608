"""Ours, driven with the same verbs as the scheduler's: adopt and publish to admit, reserve and publish to go on."""

from typing import Any

from benchmarks.machine import find_version
from minipaged import SamplingParams
from minipaged.blocks import BlockManager
from minipaged.prefix import PrefixBlockManager
from minipaged.sequence import Sequence

from . import BLOCK_SIZE

MAX_LEN = 2048
VARIANTS = {"sha256": PrefixBlockManager, "plain": BlockManager}


def make(variant: str, num_blocks: int) -> "MinipagedManager":
    return MinipagedManager(VARIANTS[variant](num_blocks, BLOCK_SIZE))


class MinipagedManager:
    def __init__(self, blocks: BlockManager):
        self.blocks, self.params = blocks, SamplingParams()
        self.settings: dict[str, Any] = {"class": type(blocks).__name__, "version": find_version("minipaged")}

    def open(self, request_id: str, token_ids: list[int]) -> Sequence:
        return Sequence(request_id, token_ids, self.params, MAX_LEN)

    def adopt(self, seq: Sequence) -> int:
        if not self.blocks.adopt(seq):
            raise RuntimeError(f"no room for request {seq.request_id}")
        num_known, num_tokens = seq.num_computed_tokens, len(seq.tokens)
        self.blocks.publish(seq, num_tokens)
        seq.num_computed_tokens = num_tokens
        return num_known

    def grow(self, seq: Sequence, token_id: int) -> None:
        seq.tokens.append(token_id)
        if not self.blocks.reserve(seq, 1):
            raise RuntimeError(f"no room for request {seq.request_id}")
        self.blocks.publish(seq, seq.num_computed_tokens + 1)
        seq.num_computed_tokens += 1

    def release(self, seq: Sequence) -> None:
        self.blocks.release(seq)

    def num_free_blocks(self) -> int:
        return self.blocks.num_free_blocks
