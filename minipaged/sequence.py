r"""A sequence is a list of tokens, the first num_computed_tokens of which are in the KV cache.

    tokens               [ p0 p1 p2 p3 | g0 g1 ]     prompt, then generated
    num_computed_tokens   --------^                  keys and values up to here are cached
    num_pending                    \_________/       what the model has yet to read
    block_table          [ 5, 2 ]                    where: position p lives in block_table[p // block_size]

Prefill, decode, chunked prefill and resuming after preemption are only different numbers of pending tokens: nothing
anywhere asks which of them it is. A request for n answers is n sequences, its choices, which begin alike and draw from
seeds of their own. Invariant: 0 <= num_computed_tokens < len(tokens) while the sequence lives, and the computed ones
fit the blocks of block_table. (From level 01.)"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import NamedTuple

from .sampling_params import SamplingParams
from .stop_strings import StopStrings
from .structured import Grammar


def choice_seed(seed: int, choice: int) -> int:
    """The request's own for the first choice, so that it draws what it would draw alone; for others a new one each."""
    return seed if choice == 0 else Random(f"{seed}, choice {choice}").getrandbits(63)


class Score(NamedTuple):
    """What the model itself thought of a token. rank: 1 is the likeliest."""

    logprob: float
    rank: int


Scores = dict[int, Score]  # of the tokens that might have stood in one place, by id: the one that does comes first


@dataclass(eq=False)
class Sequence:
    """One choice's tokens, where they are cached, and why they ended."""

    request_id: str
    tokens: list[int]
    params: SamplingParams
    max_len: int  # prompt and output together
    eos_token_ids: frozenset[int] = frozenset()
    seed: int = 0
    arrival: int = 0  # the request's
    choice: int = 0  # which of its request's n answers
    priority: int = 0
    cache_salt: str | None = None
    stops: StopStrings | None = None  # reads along, for whoever asked for stop strings
    grammar: Grammar | None = None  # what it may say, for whoever asked for structured outputs
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    block_names: list[bytes] = field(default_factory=list)  # of its full blocks, from level 04 on
    num_named_blocks: int = 0  # how many of block_table are published
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    in_flight: bool = False  # in a batch that has not landed yet, from level 06 on
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)
        self.num_reported = len(self.tokens)
        self.scores: list[Scores] = []  # of the output's tokens, if the request asked for them
        self.prompt_scores: list[Scores | None] = [None]  # of the prompt's: the first follows nothing

    @cached_property
    def prompt_token_ids(self) -> list[int]:
        """A copy, for whoever looks from outside."""
        return self.tokens[: self.num_prompt_tokens]

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.num_computed_tokens

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_events(self) -> int:
        """What there is to report so far: its tokens, and its end as one more."""
        return len(self.tokens) + self.finished

    @property
    def has_news(self) -> bool:
        return self.num_reported < self.num_events

    @property
    def num_unscored(self) -> int:
        """How many prompt tokens are to be scored yet; the first of a request's choices does it for all."""
        wanted = self.choice == 0 and self.params.prompt_logprobs is not None
        return self.num_prompt_tokens - len(self.prompt_scores) if wanted else 0

    @property
    def num_adoptable(self) -> int:
        """How many tokens need not be run if their keys are known: one is left for its logits, and all to be scored."""
        return len(self.prompt_scores) - 1 if self.num_unscored else len(self.tokens) - 1

    def sibling(self, choice: int) -> "Sequence":
        """Another answer to the same prompt, before anything of this one was computed."""
        seed = choice_seed(self.seed, choice)
        other = replace(self, choice=choice, seed=seed, tokens=list(self.tokens), block_table=[], block_names=[])
        other.stops, other.grammar = self.stops and self.stops.anew(), self.grammar and self.grammar.anew()
        return other

    def append(self, token_id: int) -> None:
        """Take a generated token, and end if it says so: EOS first, then a stop token, a stop string, the length."""
        self.tokens.append(token_id)
        if token_id in self.eos_token_ids and not self.params.ignore_eos:
            self.finish_reason = "stop"
        elif token_id in self.params.stop_token_ids:
            self.finish_reason, self.stop_reason = "stop", token_id
        elif self.stops and (found := self.stops.completed_by(token_id)):
            self.finish_reason, self.stop_reason = "stop", found
        elif len(self.tokens) >= self.max_len:
            self.finish_reason = "length"
        if self.finished and self.stops and (found := self.stops.completed_by_the_end()):
            self.finish_reason, self.stop_reason = "stop", found

    def fail(self, error: str) -> None:
        """End with finish_reason "error"; the others do not notice."""
        self.finish_reason, self.error = "error", error
