"""What experts were asked, as bars: each rank as it was, and as a plan has it.

    layer 0: 1,280 rows to 8 experts, balance 0.57 -> 0.98, 3 copied
      rank 0 ████████████████████████ 1,120  e0 620  e1 310  e2 120  e3 70     ->  ████████████▍ 655  e0 e1 e5
      rank 1 ███▍                       160  e4 60   e5 50   e6 30   e7 20     ->  ████████████  625  e0 e4 ...

The longest bar is that of the busiest rank, before or after. Invariant: the numbers before are counted, those after are
what the plan expects if the load stays as it was. (From level 07.)"""

from collections.abc import Sequence

from .balance import Balance, Slots, spread

WIDTH, EIGHTHS = 20, " ▏▎▍▌▋▊▉"


def draw_load(balances: Sequence[Balance]) -> list[str]:
    """The lines of a chart, for each layer that has experts."""
    return [line for i, balance in enumerate(balances) for line in draw_layer(i, balance)]


def draw_layer(number: int, balance: Balance) -> list[str]:
    before, after = spread(balance.load, balance.old), spread(balance.load, balance.new)
    most = max(*before, *after, 1)
    title = f"layer {number}: {sum(balance.load):,} rows to {len(balance.load)} experts, balance {balance.before:.2f}"
    if len(balance.old) == 1:
        return [
            title.removesuffix(f", balance {balance.before:.2f}"),
            f"  {name_experts(balance.old[0], balance.load)}",
        ]
    lines = [f"{title} -> {balance.after:.2f}, {balance.num_moved} copied"]
    names = [name_experts(slots, balance.load) for slots in balance.old]
    longest = max(map(len, names))
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        was = f"{bar(old / most):<{WIDTH}} {old:>7,.0f}  {names[rank]:<{longest}}"
        lines.append(
            f"  rank {rank} {was}  ->  {bar(new / most):<{WIDTH}} {new:>7,.0f}  {name_slots(balance.new[rank])}"
        )
    return lines


def bar(share: float) -> str:
    """share of WIDTH, to an eighth of a letter."""
    full, rest = divmod(round(share * WIDTH * 8), 8)
    return "█" * full + EIGHTHS[rest].strip()


def name_experts(slots: Slots, load: Sequence[int]) -> str:
    """The experts, each with its rows; a copy tells those of all copies."""
    return "  ".join(f"e{expert} {load[expert]:,}" for expert in slots if expert is not None)


def name_slots(slots: Slots) -> str:
    return " ".join(f"e{expert}" for expert in slots if expert is not None)
