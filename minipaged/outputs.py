"""What a user gets back: cumulative token ids and text, and the reason they ended.

    RequestOutput(request_id="0", prompt_token_ids=[...], finished=True)
      .outputs[0]  CompletionOutput(token_ids=[...], text="...", finish_reason="stop", stop_reason=None)

Names are vLLM's (`vllm.outputs`). Invariant: an output is a copy; the sequence behind it may go on or go away. Text is
decoded when it is asked for: most steps' outputs are never read. (From level 01.)"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from .sequence import Sequence

Decode = Callable[[list[int]], str]


@dataclass
class CompletionOutput:
    """finish_reason: None while running, then "stop", "length", "abort" or "error".
    stop_reason: the stop token id that ended it; None for EOS and every other reason."""

    index: int
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    decode: Decode = field(repr=False, compare=False)

    @cached_property
    def text(self) -> str:
        """Without the token that stopped it: an EOS or stop token is not part of the answer."""
        return self.decode(self.token_ids[:-1] if self.finish_reason == "stop" else self.token_ids)


@dataclass
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None


def report(seq: Sequence, decode: Decode) -> RequestOutput:
    """Everything seq has so far; from here on only what comes after is news."""
    seq.num_reported, n = len(seq.tokens), seq.num_prompt_tokens
    completion = CompletionOutput(0, seq.tokens[n:], seq.finish_reason, seq.stop_reason, decode)
    return RequestOutput(
        request_id=seq.request_id,
        prompt_token_ids=seq.tokens[:n],
        outputs=[completion],
        finished=seq.finished,
        num_cached_tokens=seq.num_cached_tokens,
        num_preemptions=seq.num_preemptions,
        error=seq.error,
    )
