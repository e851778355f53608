r"""cut = min { t : beyond(t) <= wanted }, beyond(t): how many weights are > t, or their mass. Found without a sort.

    weights, sorted    9  7 | 6  6  6  4  2     top_k = 3: beyond(6) = 2, beyond(5) = 5, so cut = 6,
    kept               9  7   6                 and room = 3 - 2 = 1: of the equals, the first by id
                            ^ cut, room 1       min_p is a cut too: just below min_p, without room

Weights 2 ^ ((x - top) scale) lie in [0, 1], and such floats have the order of their bits, read as integers. So a cut is
found as one finds a number: ask in the middle, keep a half. A walk along the row asks at three places at once and keeps
a quarter; 15 walks know all 30 bits.

    lift       for each of top_k and top_p that is on: the cut, and room                        15 walks at most
    find       how far the cut's equals stay, if not all do; then the token                     1 to 3 walks

Random numbers are splitmix64's, two rounds over (seed, position), of which 52 bits are kept: integers, so the same on
every device. A thread adds a few weights in float32, threads are added in float64, and the walks that draw are float64
throughout. Invariant: what has weight 0 is never drawn."""

import triton
import triton.language as tl

ONE = tl.constexpr(0x3F800000)  # the bits of 1.0, the largest weight


@triton.jit
def draw(p_row, V, top, scale, min_p, top_k, top_p, u, BV: tl.constexpr):
    """-> the id, -1 if the largest logit is inf; scale: 1 / (temperature ln 2), which turns e ^ x into 2 ^ x."""
    token = -1
    if top < float("inf"):
        cut, room, end = tl.maximum(min_p.to(tl.int32, bitcast=True) - 1, 0), tl.full([], 0.0, tl.float64), 0
        if (top_k > 0) & (top_k < V):
            cut, room = lift(p_row, V, top, scale, cut, room, top_k.to(tl.float64), False, BV)
        if top_p < 1:
            above, _, _ = beyond(p_row, V, top, scale, cut, cut, cut, True, BV)
            wanted = top_p * (above + room * to_weight(cut))
            cut, room = lift(p_row, V, top, scale, cut, room, wanted, True, BV)
        if room > 0:
            end = find(p_row, V, top, scale, cut, 0, room - 1, True, BV) + 1
        total = tl.full([], 0.0, tl.float64)
        for v in range(0, V, BV):
            _, b_share = share(p_row, v, V, top, scale, cut, end, False, BV)
            total += tl.sum(b_share, axis=0)
        token = find(p_row, V, top, scale, cut, end, u * total, False, BV)
    return token


@triton.jit
def lift(p_row, V, top, scale, cut, room, wanted, MASS: tl.constexpr, BV: tl.constexpr):
    """-> the smallest t >= cut with beyond(t) <= wanted; how many of those that weigh just t stay."""
    lo, hi, above = cut, tl.full([], ONE, tl.int32), tl.full([], 0.0, tl.float64)  # above: beyond(hi)
    while (lo < hi) & (above < wanted):
        t2 = lo + (hi - lo) // 2
        t1, t3 = lo + (t2 - lo) // 2, t2 + (hi - t2) // 2
        above1, above2, above3 = beyond(p_row, V, top, scale, t1, t2, t3, MASS, BV)
        n = (above1 > wanted).to(tl.int32) + (above2 > wanted) + (above3 > wanted)  # how many are below the cut
        lo = tl.where(n == 0, lo, 1 + tl.where(n == 1, t1, tl.where(n == 2, t2, t3)))
        hi = tl.where(n == 0, t1, tl.where(n == 1, t2, tl.where(n == 2, t3, hi)))
        above = tl.where(n == 0, above1, tl.where(n == 1, above2, tl.where(n == 2, above3, above)))
    more = tl.ceil((wanted - above) / to_weight(hi)) if MASS else wanted - above
    return hi, tl.where(hi == cut, tl.minimum(room, more), more)


@triton.jit
def beyond(p_row, V, top, scale, t1, t2, t3, MASS: tl.constexpr, BV: tl.constexpr):
    """How many weights have bits above each t, or their mass; float64, and never more for a larger t."""
    b_1, b_2, b_3 = tl.zeros([BV], tl.float32), tl.zeros([BV], tl.float32), tl.zeros([BV], tl.float32)
    for v in range(0, V, BV):
        _, b_p, b_bits = weigh(p_row, v, V, top, scale, BV)
        b_unit = b_p if MASS else 1.0
        b_1 += tl.where(b_bits > t1, b_unit, 0.0)
        b_2 += tl.where(b_bits > t2, b_unit, 0.0)
        b_3 += tl.where(b_bits > t3, b_unit, 0.0)
    return tl.sum(b_1.to(tl.float64), axis=0), tl.sum(b_2.to(tl.float64), axis=0), tl.sum(b_3.to(tl.float64), axis=0)


@triton.jit
def find(p_row, V, top, scale, cut, end, target, EQUALS: tl.constexpr, BV: tl.constexpr):
    """-> the first id where the running sum of shares exceeds target, or else the last that has a share."""
    v, token, last, running = 0, V, 0, tl.full([], 0.0, tl.float64)
    while (v < V) & (token == V):
        o_v, b_share = share(p_row, v, V, top, scale, cut, end, EQUALS, BV)
        after = running + tl.sum(b_share, axis=0)
        if after > target:
            b_sum = running + tl.cumsum(b_share, axis=0)
            token = tl.min(tl.where((b_share > 0) & (b_sum > target), o_v, V), axis=0)
        last = tl.maximum(last, tl.max(tl.where(b_share > 0, o_v, 0), axis=0))
        running, v = after, v + BV
    return tl.minimum(token, last)


@triton.jit
def share(p_row, v, V, top, scale, cut, end, EQUALS: tl.constexpr, BV: tl.constexpr):
    """-> ids [BV]; 1 for each equal of the cut, or the weights that stay: beyond the cut, and its equals before end."""
    o_v, b_p, b_bits = weigh(p_row, v, V, top, scale, BV)
    if EQUALS:
        return o_v, tl.where((b_bits == cut) & (o_v < V), 1.0, 0.0).to(tl.float64)
    return o_v, tl.where((b_bits > cut) | ((b_bits == cut) & (o_v < end)), b_p, 0.0).to(tl.float64)


@triton.jit
def weigh(p_row, v, V, top, scale, BV: tl.constexpr):
    """-> ids [BV], their weights in [0, 1], and the weights' bits."""
    o_v = v + tl.arange(0, BV)
    b_x = tl.load(p_row + o_v, mask=o_v < V, other=float("-inf"))
    b_p = tl.exp2((b_x - top) * scale)
    return o_v, b_p, b_p.to(tl.int32, bitcast=True)


@triton.jit
def to_weight(bits):
    return bits.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def uniform(seed, position):
    """float64 in [0, 1), the same on every device."""
    return (mix(mix(seed.to(tl.uint64)) + position.to(tl.uint64)) >> 12).to(tl.float64) * 2.220446049250313e-16


@triton.jit
def mix(x):
    """splitmix64 (Steele, Lea, Flood 2014)"""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
