"""No engine can be faster than the larger of two: the operations over the product rate, the bytes over the bandwidth.

    operations   2 P a token      P: parameters of all layers; every token of prompt or output passes all of them
                 2 V M an output  only sampled rows reach the head
                 2 L H D n^2      attention of a sequence of n tokens: q k and p v, 2 H D each, over n^2 / 2 pairs
    bytes        4 (P + V M)      float32 weights, once a step; a step gives each request at most one token

A last output is sampled and never read again, so it costs no pass of its own: one token a request less. What is left
out makes the true floor a little higher: reading keys and values, norms, sampling. With sharing, a prefix that
all requests begin with counts once.

The floors of a run's parts, `find_part_floors`, are of the steps that an engine did make, each by itself: its products
read all weights once; its attention reads the keys and values of every sequence in it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from benchmarks.workloads import Request
from minipaged.models.config import ModelConfig

Limits = dict[str, float]


class Work(NamedTuple):
    """What must be computed, and read."""

    flop: float
    num_bytes: float

    def seconds(self, limits: Limits) -> float:
        return max(self.flop / limits["product_gflop_s"], self.num_bytes / limits["memory_read_gb_s"]) / 1e9


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


def find_part_floors(
    model: ModelConfig, steps: Iterable[Mapping[str, int]], num_prompt: Mapping[str, int], limits: Limits
) -> dict[str, float]:
    """Seconds that the "products" and the "attention" of these steps must take at least, in float32.

    steps: of each, how many tokens of which request it ran. num_prompt: each request's prompt tokens. A request that
    gave way, or found part of its prompt, has run more or fewer tokens than this knows of: then they are estimates."""
    layers, head = count_parameters(model)
    products = attention = 0.0
    done: Counter[str] = Counter()
    for step in steps:
        num_rows = sum(done[name] + n >= num_prompt[name] for name, n in step.items())
        flop = 2 * layers * sum(step.values()) + 2 * head * num_rows
        products += Work(flop, 4 * (layers + head)).seconds(limits)
        attention += count_attention(model, [(done[name], n) for name, n in step.items()]).seconds(limits)
        done.update(step)
    return {"products": products, "attention": attention}


def count_attention(model: ModelConfig, chunks: Iterable[tuple[int, int]]) -> Work:
    """Of chunks of (tokens before, tokens in it): each token sees all up to itself, each chunk's keys are read once."""
    pairs = keys = 0
    for before, n in chunks:
        pairs += n * before + n * (n + 1) // 2
        keys += before + n
    flop = 4 * model.num_layers * model.num_heads * model.head_dim * pairs
    return Work(flop, 2 * 4 * model.num_layers * model.num_kv_heads * model.head_dim * keys)
