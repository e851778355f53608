"""weights, experts = the k largest of softmax(logits), row by row; divided by their sum if renormalised.

    logits        [ 0.1  2.0 -1.0  1.0 ]      one for each of E experts, of one token
    softmax       [ 0.09 0.64 0.03 0.23 ]
    k = 2         experts [1, 3]   weights [0.64, 0.23]      or, renormalised, [0.73, 0.27]

Which of two models it is decides their config (norm_topk_prob), and nothing in the weights would tell. Softmax comes
before the cut, so without renormalisation a token's weights say how sure the router is. Arithmetic is float32 whatever
the logits are. Invariant: experts are k different ones of 0 .. E - 1, whatever the logits hold: a token of NaNs goes
somewhere, harms nobody and stays NaN."""

from torch import Tensor


def route_spec(logits: Tensor, k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] -> weights [T, k] in float32, experts [T, k] in int64"""
    weights, experts = logits.float().softmax(-1).topk(k)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, experts
