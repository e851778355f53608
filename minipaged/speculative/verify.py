"""The model reads the guesses in one forward and says what it would have said; what agrees is kept.

    run      c    x    y    z         c is known, x y z are guesses
    said     x    y    q    .         after c, after x, after y, after z
    kept     x    y    q              x and y were right; q is the model's own word, z is forgotten

Never less than one token a forward, at most one more than was guessed. Said by whom? Greedy, and where a guess was not
drawn from anything (n-grams): by plain sampling, so that even random tokens are those of plain decoding. A guess x that
was drawn from a distribution q is kept with probability min(1, p(x) / q(x)); if it is not, the model's word is drawn
from max(p - q, 0), made to sum to 1. Either way the word's distribution is p, exactly (Leviathan et al. 2023, appendix
A.1): below, area q is what is guessed, the overlap what is kept, and what p has beyond q is what is drawn instead.

    p    |######|###|##|#
    q    |###|#########|#        p and q are what is drawn from: after penalties, temperature, top_k, top_p, min_p

Invariant: a token that was not kept leaves nothing behind: it was never published, its slot is written again before it
is read, and it is counted as drafted only. (From level 05.)"""

import torch
from torch import Tensor

from ..batch import Batch, Row, unpack
from ..processors import process
from ..sampling import Sample, column, distribution, pick, uniform
from .drafter import Guess

ACCEPT, RESIDUAL = 0x3C6EF372FE94F82B, 0x1F83D9ABFB41BD6B  # streams of random numbers that depend on no other draw


def verify(batch: Batch, logits: Tensor, guesses: list[Guess], sample: Sample) -> list[list[int]]:
    """The tokens that each chunk gains, from float32 logits [R + Q, V]; the last is never a guess."""
    said = sample(logits, batch.rows)
    judge(batch, logits, guesses, said)
    kept = []
    for guess, tokens in zip(guesses, unpack(batch, said), strict=True):
        agree = [token == draft for token, draft in zip(tokens, guess.token_ids, strict=False)]
        num_right = agree.index(False) if False in agree else len(agree)
        kept.append(tokens[: num_right + 1])
    return kept


def judge(batch: Batch, logits: Tensor, guesses: list[Guess], said: list[int]) -> None:
    """Where a guess was drawn from a distribution, replace what was said by it or by its replacement."""
    starts = batch.row_start_loc[:-1]
    drawn = [(start, guess) for start, guess in zip(starts, guesses, strict=True) if guess.probs is not None]
    index = [start + i for start, guess in drawn for i in range(len(guess.token_ids))]
    if not index:
        return
    rows = [batch.rows[i] for i in index]
    p = distribution(process(logits[index], rows), [row.params for row in rows])  # [N, V]
    q = torch.cat([guess.probs for _, guess in drawn if guess.probs is not None])  # [N, V]
    x = torch.tensor([token_id for _, guess in drawn for token_id in guess.token_ids], device=p.device)  # [N]
    words = choose(p / p.sum(-1, keepdim=True), q, x, rows)
    for i, token_id in zip(index, words.tolist(), strict=True):
        said[i] = token_id


def choose(p: Tensor, q: Tensor, x: Tensor, rows: list[Row]) -> Tensor:
    """p, q [N, V], x [N] drawn from q: tokens [N] distributed as p, and as often as can be those of x."""
    u = column([uniform(row.seed ^ ACCEPT, row.position) for row in rows], p)[:, None]  # [N, 1]
    x = x[:, None]
    is_kept = u * q.gather(-1, x) < p.gather(-1, x)
    rest = (p - q).clamp(min=0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)  # p = q but for rounding
    others = pick(rest, [uniform(row.seed ^ RESIDUAL, row.position) for row in rows])
    return torch.where(is_kept, x, others[:, None])[:, 0]
