"""What a user gets back: cumulative token ids and text, and the reason they ended.

    RequestOutput(request_id="0", prompt_token_ids=[...], finished=False)
      .outputs[0]  CompletionOutput(index=0, token_ids=[...], text="...", finish_reason="stop", stop_reason=None)
      .outputs[1]  CompletionOutput(index=1, token_ids=[...], text="...", finish_reason=None, stop_reason=None)

All n choices of a request are in each of its outputs, those without news too, in the order of their indices.
Names are vLLM's (`vllm.outputs`). Invariant: an output is a copy; the sequence behind it may go on or go away (of a
prompt there is one copy for all outputs, or a step would cost more after a longer one). Text is decoded when it is
asked for, and logprobs get their shape: most steps' outputs are never read. Until its end a text is what is certain by
then: nothing of it is taken back, neither half a character nor the beginning of a stop string. (From level 01.)"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

from .detokenizer import Detokenizer
from .sequence import Scores, Sequence

Read = Callable[[bool], str]


@dataclass(frozen=True)
class Logprob:
    """What the model itself thought of a token in its place, before penalties, temperature and all else.
    rank: 1 is the likeliest; equally likely ones share theirs."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """finish_reason: None while running, then "stop", "length", "abort" or "error".
    stop_reason: the stop token id or stop string that ended it; None for EOS and every other reason.
    read: its text, by whether it is over.
    num_cached_tokens: prompt tokens that this choice found when it was first admitted."""

    index: int
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    decode: Detokenizer = field(repr=False, compare=False)
    read: Read = field(repr=False, compare=False)
    num_cached_tokens: int = field(default=0, compare=False)
    scores: list[Scores] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """For each token itself and the likeliest in its place, as many as were asked for; None if none were."""
        return None if self.scores is None else [describe(scores, self.decode) for scores in self.scores]

    @property
    def cumulative_logprob(self) -> float | None:
        """Of all tokens together; None if logprobs were not asked for."""
        if self.scores is None:
            return None
        return sum(scores[token_id].logprob for token_id, scores in zip(self.token_ids, self.scores, strict=True))

    @cached_property
    def text(self) -> str:
        """What may be shown so far; once it is over, all of it."""
        return self.read(self.finish_reason is not None)


@dataclass
class RequestOutput:
    """finished: every choice is. num_cached_tokens: the first choice's, for what others find may be its own request's.
    num_preemptions: of all choices together. error: of the first choice that has one."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None
    prompt_scores: list[Scores | None] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """As logprobs, for each prompt token; the first is None. None if not asked for, or not all are known yet."""
        if self.prompt_scores is None:
            return None
        return [describe(scores, self.outputs[0].decode) if scores else None for scores in self.prompt_scores]


def describe(scores: Scores, decode: Detokenizer) -> dict[int, Logprob]:
    """With the text of each token, a special one's too: what ended an answer should be seen in its logprobs."""
    texts = {token_id: decode([token_id], skip_special_tokens=False) for token_id in scores}
    return {token_id: Logprob(*score, texts[token_id]) for token_id, score in scores.items()}


def report(choices: list[Sequence], decode: Detokenizer) -> RequestOutput:
    """Everything a request's choices have so far; from here on only what comes after is news."""
    first = choices[0]
    for seq in choices:
        seq.num_reported = seq.num_events
    return RequestOutput(
        request_id=first.request_id,
        prompt_token_ids=first.prompt_token_ids,
        outputs=[complete(seq, decode) for seq in choices],
        finished=all(seq.finished for seq in choices),
        num_cached_tokens=first.num_cached_tokens,
        num_preemptions=sum(seq.num_preemptions for seq in choices),
        error=next((seq.error for seq in choices if seq.error), None),
        prompt_scores=list(first.prompt_scores) if is_scored(first) else None,
    )


def is_scored(first: Sequence) -> bool:
    return first.params.prompt_logprobs is not None and not first.num_unscored


def complete(seq: Sequence, decode: Detokenizer) -> CompletionOutput:
    return CompletionOutput(
        index=seq.choice,
        token_ids=seq.tokens[seq.num_prompt_tokens :],
        finish_reason=seq.finish_reason,
        stop_reason=seq.stop_reason,
        decode=decode,
        read=reader(seq, decode),
        num_cached_tokens=seq.num_cached_tokens,
        scores=None if seq.params.logprobs is None else list(seq.scores),
    )


def reader(seq: Sequence, decode: Detokenizer) -> Read:
    """Reads what seq has said up to here, whatever it says later."""
    if seq.stops:
        return seq.stops.reader
    end = len(seq.tokens) - (seq.finish_reason == "stop")  # an EOS or stop token is not part of the answer
    return partial(read, decode, seq.tokens, slice(seq.num_prompt_tokens, end), seq.params.skip_special_tokens)


def read(decode: Detokenizer, tokens: list[int], part: slice, skip_special_tokens: bool, is_over: bool) -> str:
    """Of tokens that others may be appended to: only what is read is copied, and only then."""
    return decode(tokens[part], skip_special_tokens, so_far=not is_over)
