"""What a request wishes of its logits is done before anything is drawn, in one order, row by row.

    structured_outputs       all that the grammar forbids   -inf
    repetition_penalty r     tokens in prompt or output     x / r where x > 0, x * r elsewhere
    frequency_penalty f      tokens in the output           x - f * how often
    presence_penalty p       tokens in the output           x - p
    logit_bias b             the tokens it names            x + b
    allowed_token_ids        all others                     -inf
    min_tokens               EOS and stop tokens, as long   -inf
                             as fewer tokens are out

Output means what stands before the row: for a draft's row, the drafts before it too. Penalties and bias may change
what greedy takes; temperature and cuts (`sampling.py`) come after. The work is in the tokens that are named, not in the
vocabulary. Invariant: rows that wish nothing keep their logits, bit for bit, and if none does nothing is copied; the
model's own logits are never written. (From level 01.)"""

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from .batch import Row

Named = Mapping[int, Collection[int]]  # tokens by row


def process(logits: Tensor, rows: list[Row]) -> Tensor:
    """[R, V] -> [R, V]"""
    if not any(row.has_wishes for row in rows):
        return logits
    logits = logits.clone(memory_format=torch.contiguous_format)
    permit(logits, rows)
    penalise_repetition(logits, rows)
    penalise_output(logits, rows)
    add_bias(logits, rows)
    forbid(logits, rows)
    return logits


def permit(logits: Tensor, rows: list[Row]) -> None:
    """Only what a grammar allows, where there is one."""
    for x, row in zip(logits, rows, strict=True):
        if row.permitted is not None:
            bits = np.frombuffer(row.permitted, np.uint8)
            forbidden = np.unpackbits(bits, bitorder="little", count=len(x)) == 0
            x.masked_fill_(torch.from_numpy(forbidden).to(x.device), -torch.inf)


def penalise_repetition(logits: Tensor, rows: list[Row]) -> None:
    """Each token that is in prompt or output once, however often it is there."""
    penalties = {i: row.params.repetition_penalty for i, row in enumerate(rows) if row.params.repetition_penalty != 1}
    seen: Named = {i: {*rows[i].prompt, *rows[i].output} for i in penalties}
    index = locate(logits, seen)
    penalty = vector([penalties[i] for i, token_ids in seen.items() for _ in token_ids], logits)
    x = logits.view(-1)[index]
    logits.view(-1)[index] = torch.where(x > 0, x / penalty, x * penalty)


def penalise_output(logits: Tensor, rows: list[Row]) -> None:
    counts = {i: Counter(row.output) for i, row in enumerate(rows) if row.params.penalises_output}
    taken = [
        rows[i].params.frequency_penalty * n + rows[i].params.presence_penalty
        for i, count in counts.items()
        for n in count.values()
    ]
    logits.view(-1)[locate(logits, counts)] -= vector(taken, logits)


def add_bias(logits: Tensor, rows: list[Row]) -> None:
    biases = {i: row.params.logit_bias for i, row in enumerate(rows) if row.params.logit_bias}
    added = [bias for of_row in biases.values() for bias in of_row.values()]
    logits.view(-1)[locate(logits, biases)] += vector(added, logits)


def forbid(logits: Tensor, rows: list[Row]) -> None:
    """All but what is allowed, and what must not be said yet."""
    allowed: Named = {i: row.params.allowed_token_ids for i, row in enumerate(rows) if row.params.allowed_token_ids}
    index = locate(logits, allowed)
    kept = logits.view(-1)[index]
    logits[list(allowed)] = -torch.inf
    logits.view(-1)[index] = kept
    logits.view(-1)[locate(logits, {i: row.held_back for i, row in enumerate(rows)})] = -torch.inf


def locate(logits: Tensor, named: Named) -> Tensor:
    """Where in the flat logits the named tokens of each row are, row by row."""
    vocab_size = logits.shape[-1]
    index = [i * vocab_size + token_id for i, token_ids in named.items() for token_id in token_ids]
    return torch.from_numpy(np.array(index, np.int64)).to(logits.device)  # torch.tensor looks at each number for longer


def vector(values: list[float], logits: Tensor) -> Tensor:
    return torch.tensor(values, dtype=logits.dtype).to(logits.device)
