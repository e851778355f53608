"""What the model itself thought of each token: log-softmax of the raw logits, before anybody's wishes.

    row of logits   -0.1  2.0  0.3  1.1        drawn: token 3
    logprobs        -2.6 -0.5 -2.2 -1.4        logprobs=1:  {3: (-1.4, rank 2), 1: (-0.5, rank 1)}
    rank            4     1    3    2          as many tokens are likelier, and one

Rows are measured once their token is known: after drawing, or at once, in a prompt. So a token that was guessed and
kept is measured in the row that confirmed it, and speculation changes nothing. Invariant: what is measured depends on
the row, the token and how many are asked for, never on penalties, temperature or company; a prompt's token is measured
once, whatever chunks it comes in. (From level 01.)"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from .batch import NO_TOKEN, Batch, Measured
from .sequence import Score, Scores

NUM_ROWS = 64  # so many at once: a long prompt's rows are large enough as logits


class Asked(NamedTuple):
    """One token to be measured in one row; the answer goes behind those of the tokens before it."""

    row: int
    token_id: int
    num_likeliest: int  # -1: all
    answers: list[Scores]


def measure(batch: Batch, logits: Tensor, new_tokens: list[list[int]]) -> list[Measured]:
    """For each chunk the scores of its prompt tokens and of those that it gained, from raw logits [R + Q, V]."""
    of_prompts: list[list[Scores]] = [[] for _ in new_tokens]
    of_gained: list[list[Scores]] = [[] for _ in new_tokens]
    groups: defaultdict[int, list[Asked]] = defaultdict(list)
    for asked in chain(ask_prompts(batch, of_prompts), ask_gained(batch, new_tokens, of_gained)):
        groups[asked.num_likeliest].append(asked)
    for group in groups.values():
        for start in range(0, len(group), NUM_ROWS):
            answer(group[start : start + NUM_ROWS], logits)
    return [Measured(*scores) for scores in zip(of_prompts, of_gained, strict=True)]


def ask_prompts(batch: Batch, answers: list[list[Scores]]) -> Iterator[Asked]:
    for row, known in enumerate(batch.known, len(batch.rows)):
        yield Asked(row, known.token_id, known.num_logprobs, answers[known.chunk])


def ask_gained(batch: Batch, new_tokens: list[list[int]], answers: list[list[Scores]]) -> Iterator[Asked]:
    for start, token_ids, scores in zip(batch.row_start_loc[:-1], new_tokens, answers, strict=True):
        if token_ids and (num_likeliest := batch.rows[start].params.logprobs) is not None:
            for row, token_id in enumerate(token_ids, start):
                if token_id != NO_TOKEN:
                    yield Asked(row, token_id, num_likeliest, scores)


def answer(group: list[Asked], logits: Tensor) -> None:
    """Measure N tokens in rows of their own, all with the same number of others beside them."""
    logprobs = logits[[asked.row for asked in group]].float().log_softmax(-1)  # [N, V]
    token_ids = torch.tensor([[asked.token_id] for asked in group]).to(logits.device)
    own = logprobs.gather(-1, token_ids)  # [N, 1]
    ranks = (logprobs > own).sum(-1) + 1  # [N]
    wanted, vocab_size = group[0].num_likeliest, logits.shape[-1]
    best = logprobs.topk(vocab_size if wanted < 0 else min(wanted, vocab_size))
    columns = (own[:, 0].tolist(), ranks.tolist(), best.indices.tolist(), best.values.tolist())
    for asked, logprob, rank, others, values in zip(group, *columns, strict=True):
        asked.answers.append({asked.token_id: Score(logprob, rank)} | score_in_order(others, values))


def score_in_order(token_ids: list[int], logprobs: list[float]) -> Scores:
    """Scores of a row's likeliest tokens, the best first; equal ones share the rank of the first of them."""
    scores, rank = {}, 1
    for i, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        rank = i + 1 if i and logprob < logprobs[i - 1] else rank
        scores[token_id] = Score(logprob, rank)
    return scores
