"""Small worlds, so that collisions are common: few blocks, few words, little budget, few names.

Four words make echoes and equal beginnings likely; pools of a few blocks make every second step a fight for memory.
EOS is a set of two, and one word is unlucky: the model answers it with NaN. Some want several answers, some wait for
stop strings, some have wishes that change what is said, some ask what the model thought of it. Everything is drawn from
a Random: a seeded one makes thousands of cases quickly, hypothesis's own makes fewer and shrinks what fails."""

from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams

from .fake_model import FakeModel

UNLUCKY = frozenset({15})
NAMES = ("a", "b", "c", "d", "e", "f")


class Visit(NamedTuple):
    """One request, as somebody would make it."""

    prompt: list[int]
    params: SamplingParams
    priority: int = 0


def new_model() -> FakeModel:
    return FakeModel(unlucky=UNLUCKY)


TEXT = (2, 3, 2, 2, 4, 3, 3, 2, 5, 4, 2, 3, 2, 2, 4, 5)  # prompts are cut from it: some begin alike, some are equal
WISHES = [
    SamplingParams(temperature=t, seed=seed, max_tokens=m, ignore_eos=ignore_eos, stop_token_ids=stops)
    for t, seed in [(0, None), (4.0, 1), (4.0, 2)]  # with the fake model's margin, 4 is lively and not yet noise
    for m in [12, 9, 6, 4, 2, 1, None]
    for ignore_eos, stops in [(True, ()), (True, (3,)), (False, ()), (False, (5, 7))]
]

TASTES = [  # strong enough to overrule the fake model now and then
    {},
    {"frequency_penalty": 2.0, "presence_penalty": 0.5},
    {"repetition_penalty": 4.0, "presence_penalty": 1.5},
    {"repetition_penalty": 0.5, "frequency_penalty": -1.0},
    {"logit_bias": {3: 6.5, 4: 2.0, 2: -1.5}},
    {"allowed_token_ids": (2, 3, 4, 5)},
    {"min_tokens": 4},
    {"min_tokens": 6, "frequency_penalty": 2.0},
]
QUESTIONS = [{}, {"logprobs": 0}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"logprobs": -1, "prompt_logprobs": 3}]


def random_taste(rng: Random, max_tokens: int | None) -> dict[str, Any]:
    """Half of all have none."""
    taste = dict(rng.choice(TASTES if rng.random() < 0.5 else [{}])) | (
        rng.choice(QUESTIONS) if rng.random() < 0.3 else {}
    )
    if "min_tokens" in taste and max_tokens:
        taste["min_tokens"] = min(taste["min_tokens"], max_tokens)
    return taste


STOPS = [(), (), (), (), ("dc",), ("cd", "e"), ("ccd", "dcc", "cc"), ("fed", "dddd")]  # in letters: 2 is c


def random_visit(rng: Random) -> Visit:
    start, length = rng.randint(0, 5), rng.choice([1, 2, 3, 4, 6, 8, 10, 11])
    stops = {"stop": rng.choice(STOPS), "include_stop_str_in_output": rng.choice([False, True])}
    params = replace(rng.choice(WISHES), n=rng.choice([1, 1, 1, 2, 3]), **stops)
    params = replace(params, **random_taste(rng, params.max_tokens))
    return Visit(list(TEXT[start : start + length]), params, priority=rng.randint(0, 2))


def random_config(rng: Random, level: int) -> EngineConfig:
    """What an engine of this level may be asked to be: a pool for one or two of the longest, mostly for less."""
    block_size, max_model_len = rng.randint(1, 4), rng.randint(6, 26)
    row = -(-max_model_len // block_size)
    least, most = (row, 3 * row) if level == 1 else (2, row + 4)
    fields = {"num_blocks": rng.randint(least, most), "max_num_seqs": rng.randint(1, 5)}
    if level >= 3:
        fields["max_num_batched_tokens"] = rng.choice([1, 2, 3, 4, 5, 6, 8, 12, 16])
        fields["long_prefill_token_threshold"] = rng.choice([0, 0, 1, 2, 3, 5])
        fields["scheduling_policy"] = rng.choice(["fcfs", "priority", "priority"])
    if level >= 5:
        fields["num_speculative_tokens"] = rng.choice([1, 2, 3, 5])
        fields["speculative_length"] = rng.choice(["fixed", "adaptive"])
        fields["enable_prefix_caching"] = rng.choice([True, True, False])
    return EngineConfig(block_size=block_size, max_model_len=max_model_len, **fields)


def random_work(rng: Random, level: int) -> tuple[EngineConfig, list[Visit]]:
    """A config in which the longest possible request fits alone, and requests that all are let in."""
    config = random_config(rng, level)
    while config.num_blocks * config.block_size < config.max_model_len:
        config = random_config(rng, level)
    visits = [random_visit(rng) for _ in range(20)]
    longest = config.max_model_len
    return config, [v for v in visits if len(v.prompt) + (v.params.max_tokens or 1) <= longest][:6]
