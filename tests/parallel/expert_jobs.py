"""What a rank is asked to do with experts in tests, beside jobs.py."""

import torch

from minipaged.input_batch import to_device
from minipaged.kv_cache import KVCache
from tests.parallel.jobs import BLOCK_SIZE, CPU, batch_of, load


@torch.inference_mode()
def converse(place, folder, sequences, plan_after=()):
    """Each replica reads a sequence of its own in its own chunks, and stands by when none is left; before some steps,
    experts move. Logits [T, V] as lists; of each plan and layer load, slots, balance before and after; bytes."""
    model = load(place, folder)
    model.pack()
    replica = place.experts.rank // place.tensor.size if place.experts.size > 1 else 0
    token_ids, chunk_lens = sequences[replica]
    cache = KVCache(
        1 + -(-len(token_ids) // BLOCK_SIZE), BLOCK_SIZE, model.portion, model.config.head_dim, torch.float32, CPU
    )
    cache.data.fill_(torch.nan)
    logits, plans, start = [torch.empty(0, model.config.vocab_size)], [], 0
    for step in range(max(len(lens) for _, lens in sequences)):
        if step in plan_after:
            plans.append([(plan.load, plan.new, plan.before, plan.after) for plan in model.rebalance()])
        if step < len(chunk_lens):
            end = start + chunk_lens[step]
            rows = model(to_device(batch_of(token_ids, start, end), CPU), cache)
            logits += [rows] if place.answers else []
            start = end
        else:
            model.idle()
    return torch.cat(logits).tolist(), plans, dict(place.traffic.num_bytes)


def trade(place, dtype):
    """Rows from everybody to everybody, uneven and none: what rank r has for rank s is r + 1 rows if s is odd or r is
    even, and none otherwise, all of them 10 r + s. What came, and the bytes that were sent."""
    group = place.experts

    def count(sender, receiver):
        return sender + 1 if receiver % 2 or sender % 2 == 0 else 0

    to_each = [count(group.rank, rank) for rank in range(group.size)]
    from_each = [count(rank, group.rank) for rank in range(group.size)]
    numbers = [10 * group.rank + rank for rank in range(group.size) for _ in range(to_each[rank])]
    x = torch.tensor(numbers, dtype=dtype)[:, None].expand(-1, 3)
    return group.exchange(x, to_each, from_each).tolist(), place.traffic.num_bytes["exchange"]


def trade_nothing(place):
    nobody = [0] * place.experts.size
    return place.experts.exchange(torch.empty(0, 5), nobody, nobody).shape
