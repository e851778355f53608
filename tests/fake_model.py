"""A model whose cache bites: whoever reads a slot that is not theirs fails at the spot.

    slot      (position, token, digest of all tokens up to here), or None: nobody has written it
    read      position p of a sequence must find p there, and the digest of exactly this sequence's past
    answer    mostly what followed the newest token the last time it occurred, now and then something new

A slot's digest depends on every token before it, as real keys and values do, so a stale, foreign or missing slot is
found when it is read. Answers are a function of the tokens alone: what engines must say can be known without one. An
unlucky token as the newest makes the row NaN."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models

from minipaged.batch import NO_TOKEN, Batch, Row
from minipaged.config import EngineConfig
from minipaged.detokenizer import Detokenizer
from minipaged.sampling import sample
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import choice_seed
from minipaged.structured import Grammars
from minipaged.vocabulary import Vocabulary

from .plain import cuts, processed
from .stopping import ended, text_of

NOTHING = 0  # the digest of no tokens
FIRST_LETTER = ord("a")
MARGIN = 8.0  # between the logit of what the model says and all others


def extend(digest: int, token: int) -> int:
    return hash((digest, token)) & 0xFFFFFFFF


@cache
def letters(vocab_size: int) -> Detokenizer:
    """Every token is a letter: 0 is a, 1 is b."""
    tokenizer = Tokenizer(models.WordLevel({chr(FIRST_LETTER + i): i for i in range(vocab_size)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    return Detokenizer(tokenizer)


@cache
def letter_grammars(vocab_size: int, eos_token_ids: frozenset[int]) -> Grammars:
    return Grammars(letters(vocab_size).tokenizer, vocab_size, eos_token_ids)


class FakeKVCache:
    """num_blocks x block_size slots in plain Python."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.slots: list[tuple[int, int, int] | None] = [None] * (num_blocks * block_size)

    def slot(self, block_table: list[int], position: int) -> int:
        assert position // self.block_size < len(block_table), f"position {position} has no block in {block_table}"
        return block_table[position // self.block_size] * self.block_size + position % self.block_size

    def read(self, block_table: list[int], position: int) -> tuple[int, int]:
        """(token, digest) of a position."""
        found = self.slots[self.slot(block_table, position)]
        assert found is not None, f"position {position} of {block_table} was never written"
        assert found[0] == position, f"position {position} of {block_table} reads {found}"
        return found[1:]

    def past(self, block_table: list[int], length: int) -> list[int]:
        """The tokens of a whole past; each digest must follow from the one before."""
        tokens, digest = [], NOTHING
        for position in range(length):
            token, found = self.read(block_table, position)
            digest = extend(digest, token)
            assert found == digest, f"position {position} of {block_table} is somebody else's"
            tokens.append(token)
        return tokens


@dataclass
class FakeModel:
    """What engines need of a ModelRunner; the ids in `unlucky` make NaN."""

    vocab_size: int = 16
    eos_token_ids: frozenset[int] = frozenset({0, 1})
    unlucky: frozenset[int] = frozenset()
    forward_s: float = 0.0
    num_forwards: int = 0
    drafts: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None

    sample = staticmethod(sample)

    def resolve(self, config: EngineConfig) -> EngineConfig:
        return replace(config, max_model_len=config.max_model_len or 64, num_blocks=config.num_blocks or 64)

    def new_kv_cache(self, num_blocks: int, block_size: int) -> FakeKVCache:
        return FakeKVCache(num_blocks, block_size)

    @property
    def vocabulary(self) -> Vocabulary:
        grammars = letter_grammars(self.vocab_size, self.eos_token_ids)
        return Vocabulary(self.vocab_size, self.eos_token_ids, self.tokenizer, letters(self.vocab_size), grammars)

    def __call__(self, batch: Batch, kv_cache: FakeKVCache) -> torch.Tensor:
        self.num_forwards += 1
        written = [slot for slot in batch.slot_mapping if slot >= 0]
        assert len(set(written)) == len(written), "no slot is written twice in a step"
        pasts = {}
        for s, (start, end) in enumerate(pairwise(batch.query_start_loc)):
            for i in range(start, end):
                self.write(batch, i, batch.block_tables[s], kv_cache)
                pasts[i] = (batch.block_tables[s], batch.positions[i] + 1)
            assert batch.seq_lens[s] == batch.positions[end - 1] + 1, "a sequence sees its keys up to its newest token"
        rows = [self.logits(kv_cache.past(*pasts[i])) for i in batch.logits_indices]
        return torch.tensor(rows, dtype=torch.float32).reshape(len(rows), self.vocab_size)  # [R, V]

    def write(self, batch: Batch, i: int, block_table: list[int], kv_cache: FakeKVCache) -> None:
        position, token = batch.positions[i], batch.token_ids[i]
        digest = extend(kv_cache.read(block_table, position - 1)[1] if position else NOTHING, token)
        assert batch.slot_mapping[i] == kv_cache.slot(block_table, position), "slots follow from the block table"
        kv_cache.slots[batch.slot_mapping[i]] = (position, token, digest)

    def logits(self, tokens: list[int]) -> list[float]:
        """The row that follows `tokens`, [V]."""
        digest = NOTHING
        for token in tokens:
            digest = extend(digest, token)
        if tokens[-1] in self.unlucky:
            return [float("nan")] * self.vocab_size
        echo = next((tokens[p + 1] for p in range(len(tokens) - 2, -1, -1) if tokens[p] == tokens[-1]), None)
        says = digest // 4 % self.vocab_size if echo is None or digest % 4 == 0 else echo
        return [MARGIN * (token == says) for token in range(self.vocab_size)]

    def says(self, prompt: list[int], said: list[int], params: SamplingParams) -> int:
        """The token that follows them when nobody else is about."""
        row = processed(self.logits([*prompt, *said]), params, prompt, said, self.eos_token_ids)
        if params.greedy:
            return NO_TOKEN if any(x != x for x in row) else row.index(max(row))
        return sample(torch.tensor([row]), [Row(cuts(params), params.seed or 0, len(prompt) + len(said))])[0]


@dataclass(frozen=True)
class Answer:
    """How one request ends on an engine with memory enough."""

    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None = None


def spell(token_ids: Iterable[int]) -> list[str]:
    """The text of each token."""
    return [chr(FIRST_LETTER + token_id) for token_id in token_ids]


def spoken_text(answer: Answer, num_said: int, params: SamplingParams, finish_reason: str | None) -> str:
    """What an output of its first num_said tokens shows, if it ended so."""
    stop_reason = answer.stop_reason if finish_reason == "stop" else None
    return text_of(spell(answer.token_ids[:num_said]), params, finish_reason, stop_reason)


def answers_alone(model: FakeModel, prompt: Iterable[int], params: SamplingParams, max_model_len: int) -> list[Answer]:
    """The choices of a request, each as a request of its own with the seed that is derived for it."""
    seeds = [choice_seed(params.seed or 0, choice) for choice in range(params.n)]
    return [answer_alone(model, prompt, replace(params, n=1, seed=seed), max_model_len) for seed in seeds]


def answer_alone(model: FakeModel, prompt: Iterable[int], params: SamplingParams, max_model_len: int) -> Answer:
    """No engine, no cache, no batch: token after token, until policy 9 or the length says stop."""
    prompt, said = list(prompt), list[int]()
    limit = max_model_len - len(prompt) if params.max_tokens is None else params.max_tokens
    while True:
        if (token := model.says(prompt, said, params)) == NO_TOKEN:
            return Answer(tuple(said), "error")
        said.append(token)
        if token in model.eos_token_ids and not params.ignore_eos:
            return Answer(tuple(said), "stop")
        if token in params.stop_token_ids:
            return Answer(tuple(said), "stop", token)
        if params.stop and (end := ended(spell(said), params)):
            return Answer(tuple(said), "stop", end[1])
        if len(said) == limit:
            return Answer(tuple(said), "length")
