"""What Prometheus wants to know: the engine's own counts, and how long clients wait for it.

    arrival |--- time to first token ---|-- inter token --|-- inter token --| end
            |------------------------ e2e request latency ------------------|

Names are vLLM's with the prefix minipaged, so that its dashboards fit. Counts of the engine are read when somebody
asks (`EngineCounts`), never kept twice; tokens that come in one output share its moment, which is when it came from
the engine, however slowly its client reads. (From level 08.)"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..outputs import RequestOutput

LABEL = "model_name"
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
ITL_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
E2E_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)


class Stats(Protocol):
    """What the engine counts; sums over its replicas, counters since the start."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    draft_tokens: int
    accepted_tokens: int
    preemptions: int


GAUGES = {
    "num_requests_running": "requests that hold memory and a seat",
    "num_requests_waiting": "requests in the queue",
    "kv_cache_usage_perc": "share of the KV blocks that is in use, 1 is all",
}
COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "tokens of prompts that were read"),
    "generation_tokens": ("generation_tokens", "tokens that were generated"),
    "prefix_cache_queries": ("prefix_queries", "prompt tokens that were looked up in the prefix cache"),
    "prefix_cache_hits": ("prefix_hits", "prompt tokens that were found there"),
    "num_preemptions": ("preemptions", "times that a request gave way"),
    "spec_decode_num_draft_tokens": ("draft_tokens", "tokens that were guessed"),
    "spec_decode_num_accepted_tokens": ("accepted_tokens", "guesses that were right"),
}


class EngineCounts:
    """A collector: asks the engine at the moment Prometheus asks."""

    def __init__(self, stats: Callable[[], Stats], model: str):
        self.stats, self.model = stats, model

    def collect(self) -> Iterator[Metric]:
        now = self.stats()
        used = 1 - now.num_free_blocks / now.num_blocks if now.num_blocks else 0.0
        for (name, text), value in zip(GAUGES.items(), (now.num_running, now.num_waiting, used), strict=True):
            gauge = GaugeMetricFamily(f"minipaged:{name}", text, labels=[LABEL])
            gauge.add_metric([self.model], value)
            yield gauge
        for name, (attribute, text) in COUNTERS.items():
            counter = CounterMetricFamily(f"minipaged:{name}", text, labels=[LABEL])
            counter.add_metric([self.model], getattr(now, attribute))
            yield counter


class Metrics:
    """A registry of its own: two servers in one process do not meet."""

    def __init__(self, stats: Callable[[], Stats], model: str):
        self.registry, self.model = CollectorRegistry(), model
        self.last_ttft_s: float | None = None  # for the page, which shows no histograms
        self.registry.register(EngineCounts(stats, model))
        self.ttft = self.histogram("time_to_first_token_seconds", "from arrival to the first token", TTFT_S)
        self.itl = self.histogram("inter_token_latency_seconds", "from one output to the next", ITL_S)
        self.tpot = self.histogram("request_time_per_output_token_seconds", "mean after the first", ITL_S)
        self.e2e = self.histogram("e2e_request_latency_seconds", "from arrival to the end", E2E_S)
        self.success = Counter(
            "minipaged:request_success", "answers that ended", [LABEL, "finished_reason"], registry=self.registry
        )

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"minipaged:{name}", text, [LABEL], registry=self.registry, buckets=buckets)
        return made.labels(self.model)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class Stopwatch:
    """Times one HTTP request, whose choices are known by their numbers over all prompts; heard of in one thread."""

    def __init__(self, metrics: Metrics, num_choices: int):
        self.metrics, self.arrival = metrics, time.perf_counter()
        self.first: list[float | None] = [None] * num_choices
        self.last, self.num_tokens = [self.arrival] * num_choices, [0] * num_choices
        self.open = set(range(num_choices))

    def see(self, first_choice: int, output: RequestOutput) -> None:
        now = time.perf_counter()
        for choice, said in enumerate(output.outputs, first_choice):
            if len(said.token_ids) > self.num_tokens[choice]:
                self.time(choice, now)
                self.num_tokens[choice] = len(said.token_ids)
            if said.finish_reason and choice in self.open:
                self.finish(choice, now, said.finish_reason)

    def time(self, choice: int, now: float) -> None:
        gap, self.last[choice] = now - self.last[choice], now
        if self.first[choice] is not None:
            self.metrics.itl.observe(gap)
            return
        self.first[choice], self.metrics.last_ttft_s = now, gap
        self.metrics.ttft.observe(gap)

    def finish(self, choice: int, now: float, reason: str) -> None:
        self.open.remove(choice)
        self.metrics.success.labels(self.metrics.model, reason).inc()
        began, more = self.first[choice], self.num_tokens[choice] - 1
        if began is not None and more:
            self.metrics.tpot.observe((now - began) / more)
        if not self.open:
            self.metrics.e2e.observe(now - self.arrival)
