"""The front desk: who may come in, who is being served, and what they are told.

    add_request -> check -> open ->  n choices  -> report, report, ... -> gone
                     |               (Sequences)    (cumulative outputs, the last one says why they ended)
                     +-- refused: the sentence names n, max_tokens, max_model_len, the blocks it would need

From here on every choice goes its own way, with a seed, a place in the queue and blocks of its own; only the desk knows
which belong together. Invariant: whatever comes in can run alone on this engine, one choice at a time; an id belongs to
one live request at a time and is free again as soon as all its choices ended, or it was aborted. (From level 01.)"""

from collections.abc import Iterable
from itertools import count
from random import Random

from .checks import check_integer, show
from .config import EngineConfig
from .outputs import RequestOutput, report
from .sampling_params import SamplingParams
from .sequence import Sequence
from .stop_strings import StopStrings
from .structured import Grammar
from .vocabulary import Vocabulary


class FrontDesk:
    """config is complete: the model filled in max_model_len and num_blocks."""

    def __init__(self, config: EngineConfig, vocabulary: Vocabulary):
        self.config, self.vocabulary, self.vocab_size = config, vocabulary, vocabulary.size
        self.eos_token_ids, self.decode, self.grammars = (
            vocabulary.eos_token_ids,
            vocabulary.decode,
            vocabulary.grammars,
        )
        self.live: dict[str, list[Sequence]] = {}  # request id -> its choices
        self.arrivals = count()

    def check(self, prompt_token_ids: list[int], params: SamplingParams) -> None:
        """Raises ValueError (TypeError for a wrong type) for a request that could not run even alone."""
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params must be SamplingParams, not {show(params)}")
        self.check_token_ids(prompt_token_ids)
        self.check_vocabulary(params)
        self.check_text(params)
        n, limit, m = len(prompt_token_ids), self.config.max_model_len, params.max_tokens
        if n > limit - 1:
            raise ValueError(f"the prompt has {n} tokens; max_model_len {limit} leaves room for {limit - 1}")
        if m is not None and n + m > limit:
            raise ValueError(f"max_tokens {m} + a prompt of {n} = {n + m} tokens exceed max_model_len {limit}")
        size, num_blocks = self.config.block_size, self.config.num_blocks
        if (needed := -(-n // size)) > num_blocks:
            raise ValueError(f"a prompt of {n} tokens needs {needed} blocks of {size}; the whole pool has {num_blocks}")

    def check_text(self, params: SamplingParams) -> None:
        """What a request asks of its text needs a tokenizer, and a grammar one that can be read."""
        if params.stop and self.decode.tokenizer is None:
            raise ValueError("stop needs a tokenizer, and this model has none: give stop_token_ids")
        if params.structured_outputs is not None:
            if self.grammars is None:
                raise ValueError("structured_outputs comes with level 03")
            self.grammars.check(params.structured_outputs)

    def check_token_ids(self, prompt_token_ids: object) -> None:
        if not isinstance(prompt_token_ids, list | tuple):
            raise TypeError(f"a prompt must be a list of token ids, not {show(prompt_token_ids)}")
        if len(prompt_token_ids) == 0:
            raise ValueError("the prompt is empty")
        for i, token_id in enumerate(prompt_token_ids):
            if type(token_id) is not int or not 0 <= token_id < self.vocab_size:
                check_integer(f"prompt_token_ids[{i}]", token_id, 0, self.vocab_size - 1)

    def check_vocabulary(self, params: SamplingParams) -> None:
        """Whatever params say of single tokens must be about tokens that there are."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token_id in getattr(params, name) or ():
                check_integer(f"{name} token id", token_id, 0, self.vocab_size - 1)
        for name in ("logprobs", "prompt_logprobs"):
            check_integer(name, getattr(params, name), -1, self.vocab_size, optional=True)
        ends = self.eos_token_ids.union(params.stop_token_ids)
        allowed = params.allowed_token_ids or range(self.vocab_size)
        if params.min_tokens and len(ends) >= len(allowed) and ends.issuperset(allowed):
            raise ValueError(f"min_tokens {params.min_tokens} holds back all that may be said: each ends the answer")

    def open(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[Sequence]:
        """Check a request and bring its choices to life. Raises as `check` does, and ValueError for an id in use."""
        self.check(prompt_token_ids, params)
        return self.register(prompt_token_ids, params, request_id, priority, cache_salt)

    def register(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[Sequence]:
        """The second half of `open`, for who has been checked."""
        self.check_place(request_id, priority, cache_salt)
        arrival = next(self.arrivals)  # a refused call takes no number, so nobody's seed depends on it
        first = self.begin(
            prompt_token_ids, params, arrival, self.free_id(arrival) if request_id is None else request_id
        )
        first.priority, first.cache_salt = int(priority), cache_salt
        seqs = self.live[first.request_id] = [first, *(first.sibling(choice) for choice in range(1, params.n))]
        return seqs

    def begin(self, prompt_token_ids: list[int], params: SamplingParams, arrival: int, request_id: str) -> Sequence:
        """The first choice of a request."""
        return Sequence(
            request_id=request_id,
            tokens=[int(token_id) for token_id in prompt_token_ids],
            params=params,
            max_len=self.max_len(len(prompt_token_ids), params),
            eos_token_ids=self.eos_token_ids,
            seed=Random(f"{self.config.seed}/{arrival}").getrandbits(63) if params.seed is None else params.seed,
            arrival=arrival,
            stops=self.watch(params),
            grammar=self.guide(params),
        )

    def check_place(self, request_id: str | None, priority: int, cache_salt: str | None) -> None:
        check_integer("priority", priority, -(2**63), 2**63 - 1)
        for name, value in (("request_id", request_id), ("cache_salt", cache_salt)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be text, not {show(value)}")
        if request_id in self.live:
            raise ValueError(f"request id {request_id!r} belongs to a request that is still running")

    def max_len(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """How long the sequence may become; the newest token needs no slot, so it may be one longer than the pool."""
        wanted = self.config.max_model_len if params.max_tokens is None else num_prompt_tokens + params.max_tokens
        return min(wanted, self.config.num_blocks * self.config.block_size + 1)

    def watch(self, params: SamplingParams) -> StopStrings | None:
        """Who asks for no stop strings has nobody reading along."""
        return StopStrings(params, self.decode.stream) if params.stop else None

    def guide(self, params: SamplingParams) -> Grammar | None:
        """Nor is there a grammar for whoever asks for none."""
        return self.grammars.open(params.structured_outputs) if self.grammars and params.structured_outputs else None

    def free_id(self, arrival: int) -> str:
        """The arrival's number, unless somebody chose that very id."""
        return next(name for i in count(arrival) if (name := str(i)) not in self.live)

    def close(self, request_id: str) -> list[Sequence]:
        """Forget a request, known or not; its id is free at once. Returns the choices that had not ended."""
        return [seq for seq in self.live.pop(request_id, []) if not seq.finished]

    def report(self, seqs: Iterable[Sequence]) -> list[RequestOutput]:
        """An output for each request that has news of a choice; whoever ended with all choices is forgotten."""
        outputs = []
        for seq in seqs:
            if seq.has_news and seq in (choices := self.live.get(seq.request_id, [])):
                outputs.append(report(choices, self.decode))
                if outputs[-1].finished:
                    self.close(seq.request_id)
        return outputs

    def check_integrity(self, holders: Iterable[Sequence]) -> None:
        """`holders` are all sequences that wait or run. Raises AssertionError with the broken invariant's name."""
        unfinished = [seq for choices in self.live.values() for seq in choices if not seq.finished]
        assert {seq for seq in holders if not seq.finished} == {*unfinished}, "a live sequence waits or runs"
        assert self.live.keys() == {seq.request_id for seq in unfinished}, "a live request has a live choice"
