"""No engine can be faster than the larger of two: the operations over the product rate, the bytes over the bandwidth.

    operations   2 P a token      P: parameters of all layers; every token of prompt or output passes all of them
                 2 V M an output  only sampled rows reach the head
                 2 L H D n^2      attention of a sequence of n tokens: q k and p v, 2 H D each, over n^2 / 2 pairs
    bytes        4 (P + V M)      float32 weights, once a step; a step gives each request at most one token

A last output is sampled and never read again, so it costs no pass of its own: one token a request less. What is left
out makes the true floor a little higher: reading keys and values, norms, sampling. With sharing, a prefix that
all requests begin with counts once."""

from typing import NamedTuple

from benchmarks.workloads import Request
from minipaged.models.config import ModelConfig

Limits = dict[str, float]


class Work(NamedTuple):
    """What a list of requests costs at least."""

    flop: float
    weight_bytes: float

    def seconds(self, limits: Limits) -> float:
        return max(self.flop / limits["product_gflop_s"], self.weight_bytes / limits["memory_read_gb_s"]) / 1e9


def count_parameters(model: ModelConfig) -> tuple[int, int]:
    """(in all layers, in the head), biases and norms aside."""
    attention = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim * model.hidden_size
    mlp = 3 * model.hidden_size * model.intermediate_size
    return model.num_layers * (attention + mlp), model.vocab_size * model.hidden_size


def count_work(model: ModelConfig, requests: list[Request], num_shared: int = 0) -> Work:
    """The first num_shared tokens of all prompts are computed once."""
    layers, head = count_parameters(model)
    lengths = [len(request.prompt_token_ids) + request.max_tokens - 1 for request in requests]
    saved = len(requests) - 1
    passes = sum(lengths) - saved * num_shared
    pairs = sum(n * n for n in lengths) - saved * num_shared**2
    num_outputs = sum(request.max_tokens for request in requests)
    attention = 2 * model.num_layers * model.num_heads * model.head_dim * pairs
    num_steps = max(request.max_tokens for request in requests)
    return Work(2 * layers * passes + 2 * head * num_outputs + attention, num_steps * 4 * (layers + head))


def count_shared(requests: list[Request]) -> int:
    """How many tokens all prompts begin with."""
    shared = 0
    for tokens in zip(*(request.prompt_token_ids for request in requests), strict=False):
        if len(set(tokens)) > 1:
            break
        shared += 1
    return shared


def find_floors(model: ModelConfig, requests: list[Request], limits: Limits) -> dict[str, float]:
    """The best possible value of each figure, by its key.

    "shared" is output_tokens_per_s with what all prompts begin with computed once."""
    seconds = count_work(model, requests).seconds(limits)
    num_outputs = sum(request.max_tokens for request in requests)
    floors = {
        "output_tokens_per_s": num_outputs / seconds,
        "prompt_tokens_per_s": sum(len(request.prompt_token_ids) for request in requests) / seconds,
    }
    if len(requests) == 1:
        weights = sum(count_parameters(model))
        floors["decode_tokens_per_s"] = 1 / Work(2 * weights, 4 * weights).seconds(limits)
        floors["ttft_s"] = count_work(model, [requests[0]._replace(max_tokens=1)]).seconds(limits)
    if len(requests) > 1 and (num_shared := count_shared(requests)):
        floors["shared"] = num_outputs / count_work(model, requests, num_shared).seconds(limits)
    return floors
