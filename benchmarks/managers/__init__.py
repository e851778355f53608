"""A block manager, whoever's, is what holds blocks for sequences: four verbs around an object of its own.

    minipaged:sha256    prefix.py; names are SHA-256 of parent and token ids
    minipaged:plain     blocks.py, which remembers nothing
    vllm:sha256         vLLM's KVCacheManager as it comes: SHA-256 of a pickle
    vllm:sha256_cbor    the same, SHA-256 of CBOR
    vllm:plain          the same, prefix caching off

Invariant: all names are given inside `adopt` and `grow`, wherever an engine has them given, so that the clocks around
these cover the same work. A manager is imported where it is made: in a process, and for vLLM an interpreter, of its
own."""

from importlib import import_module
from typing import Any, Protocol

OURS = ("minipaged:sha256", "minipaged:plain")
THEIRS = ("vllm:sha256", "vllm:sha256_cbor", "vllm:plain")
BLOCK_SIZE = 16


class Manager(Protocol):
    """num_blocks usable blocks of BLOCK_SIZE tokens."""

    settings: dict[str, Any]  # whatever decides its speed, for the record

    def open(self, request_id: str, token_ids: list[int]) -> Any:
        """A sequence that holds nothing yet."""
        ...

    def adopt(self, seq: Any) -> int:
        """Blocks for all of seq's tokens, the full ones for others to find from now on; how many tokens were known."""
        ...

    def grow(self, seq: Any, token_id: int) -> None:
        """One more token, a slot for it, and a name for the block that it fills."""
        ...

    def release(self, seq: Any) -> None: ...

    def num_free_blocks(self) -> int: ...


def is_plain(name: str) -> bool:
    return name.endswith(":plain")


def make_manager(name: str, num_blocks: int) -> Manager:
    family, _, variant = name.partition(":")
    manager: Manager = import_module(f"{__name__}.{family}_manager").make(variant, num_blocks)
    return manager
