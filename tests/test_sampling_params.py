"""What no sampler could do is refused before an engine sees it."""

import math
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction

import numpy as np
import pytest

from minipaged.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 0},
        {"n": -1},
        {"n": 129},
        {"n": 10_000_000},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"presence_penalty": 2.1},
        {"presence_penalty": -2.1},
        {"frequency_penalty": 2.1},
        {"frequency_penalty": math.nan},
        {"repetition_penalty": 0},
        {"repetition_penalty": -1},
        {"repetition_penalty": math.inf},
        {"min_tokens": -1},
        {"min_tokens": 17},
        {"logprobs": -2},
        {"prompt_logprobs": -2},
        {"logit_bias": {-1: 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {3: math.nan}},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [-1]},
        {"seed": 2**63},
        {"seed": -(2**63) - 1},
        {"stop_token_ids": [3, -1]},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": "\ud800"},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_name(fields):
    (name,) = fields
    with pytest.raises(ValueError, match=f"^{name}"):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1.5},
        {"n": None},
        {"max_tokens": 1.5},
        {"max_tokens": "5"},
        {"temperature": "hot"},
        {"top_k": 1.0},
        {"seed": 0.5},
        {"ignore_eos": 1},
        {"presence_penalty": "1"},
        {"frequency_penalty": None},
        {"repetition_penalty": True},
        {"min_tokens": 1.0},
        {"min_tokens": None},
        {"logprobs": 1.5},
        {"logprobs": True},
        {"prompt_logprobs": "2"},
        {"logit_bias": [3, 4]},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {1.5: 1}},
        {"logit_bias": {3: "1"}},
        {"allowed_token_ids": "53"},
        {"allowed_token_ids": [1.5]},
        {"stop_token_ids": "53"},
        {"stop": 3},
        {"stop": ["a", 3]},
        {"stop": {"a": 1}},
        {"include_stop_str_in_output": 1},
        {"skip_special_tokens": "yes"},
        {"stop_token_ids": 53},
    ],
    ids=str,
)
def test_a_wrong_type_is_refused_by_name(fields):
    (name,) = fields
    with pytest.raises(TypeError, match=name):
        SamplingParams(**fields)


def test_what_means_off_is_legal():
    SamplingParams(top_k=-1, top_p=1, min_p=0, max_tokens=None, seed=None)
    SamplingParams(top_k=9_999_999)
    SamplingParams(presence_penalty=0, frequency_penalty=0, repetition_penalty=1, logit_bias={}, logprobs=None)
    assert not SamplingParams(logit_bias={}).biased


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"n": 128},
        {"max_tokens": 1},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"top_p": 1e-09},
        {"presence_penalty": -2},
        {"frequency_penalty": 2},
        {"repetition_penalty": 0.001},
        {"min_tokens": 16},
        {"min_tokens": 99, "max_tokens": None},
        {"logprobs": 0},
        {"logprobs": -1},
        {"prompt_logprobs": 10**6},
    ],
    ids=str,
)
def test_the_ends_of_a_legal_range_are_legal(fields):
    SamplingParams(**fields)


def test_the_default_is_16_tokens_of_the_models_own_distribution():
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (16, 1.0, 1.0, 0, 0.0)


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (9e-6, True), (1e-5, False), (1, False)])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_a_number_of_choices_beyond_the_limit_is_refused_with_the_limit():
    with pytest.raises(ValueError, match=r"^n must be a whole number in \[1, 128\], not 10000000$"):
        SamplingParams(n=10_000_000)


def test_params_are_values():
    params = SamplingParams(stop_token_ids=[3, 4])
    assert params == SamplingParams(stop_token_ids=(3, 4)) == SamplingParams(stop_token_ids=[3, 4, 3])
    assert len({params, SamplingParams(stop_token_ids=(3, 4))}) == 1
    with pytest.raises(FrozenInstanceError):
        params.seed = 1


def test_min_tokens_cannot_be_more_than_max_tokens():
    with pytest.raises(ValueError, match=r"^min_tokens must be a whole number in \[0, 3\], not 4$"):
        SamplingParams(min_tokens=4, max_tokens=3)


def test_biases_may_have_keys_of_text_as_json_has_and_beyond_100_count_as_100():
    params = SamplingParams(logit_bias={"5": 150, 6: -1e9, 7: 2})
    assert params.logit_bias == {5: 100.0, 6: -100.0, 7: 2.0}
    assert replace(params, n=2).logit_bias == params.logit_bias
    assert hash(params) == hash(replace(params))


def test_params_keep_no_list_or_mapping_of_the_callers():
    biases, allowed = {3: 1.0}, [3]
    params = SamplingParams(logit_bias=biases, allowed_token_ids=allowed)
    biases[4] = 1.0
    allowed.append(4)
    assert (params.logit_bias, params.allowed_token_ids) == ({3: 1.0}, (3,))


def test_one_stop_string_is_a_list_of_one_and_none_is_none():
    assert SamplingParams(stop="a") == SamplingParams(stop=["a"]) == SamplingParams(stop=("a",))
    assert SamplingParams(stop=None) == SamplingParams(stop=[]) == SamplingParams()


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ({"temperature": 1e300}, 1e30),
        ({"temperature": 10**300}, 1e30),
        ({"temperature": 1e30}, 1e30),
        ({"temperature": 5e-324}, 5e-324),
        ({"temperature": -0.0}, 0.0),
        ({"repetition_penalty": 1e300}, 1e30),
        ({"repetition_penalty": 1e-300}, 1e-30),
        ({"repetition_penalty": 5e-324}, 1e-30),
        ({"repetition_penalty": 1e-30}, 1e-30),
    ],
)
def test_what_float32_cannot_hold_counts_as_the_most_it_can_tell(asked, counts):
    [(name, _)] = asked.items()
    assert getattr(SamplingParams(**asked), name) == counts
    assert SamplingParams(**asked).greedy is (counts < 1e-5 and name == "temperature")


HUGE = 10**5000  # Python itself refuses to write it


@pytest.mark.parametrize(
    "name",
    [
        "n",
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "min_tokens",
        "logit_bias",
        "stop",
        "structured_outputs",
    ],
)
def test_a_number_too_long_to_be_written_is_refused_by_name_all_the_same(name):
    value = {3: HUGE} if name == "logit_bias" else [HUGE] if name == "stop" else HUGE
    with pytest.raises(
        (ValueError, TypeError), match=rf"^{name}.* must .*, not .*whole number of thousands of digits$"
    ):
        SamplingParams(**{name: value})


def test_neither_is_a_token_id_that_is_text_too_long():
    with pytest.raises(TypeError, match=r"^logit_bias token id must be a whole number >= 0, not '999"):
        SamplingParams(logit_bias={"9" * 5000: 1})
    with pytest.raises(TypeError) as refused:
        SamplingParams(stop=[b"a" * 10**6])
    assert len(str(refused.value)) < 300


def test_numbers_of_other_kinds_are_pythons_from_here_on():
    whole = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "num_speculative_tokens")
    real = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    params = SamplingParams(
        **{name: np.int64(3) for name in whole},
        **{name: Fraction(1, 2) for name in real},
        logit_bias={np.int64(3): np.float32(2)},
        allowed_token_ids=np.array([1, 2]),
    )
    plain = SamplingParams(
        **dict.fromkeys(whole, 3), **dict.fromkeys(real, 0.5), logit_bias={3: 2}, allowed_token_ids=[1, 2]
    )
    assert params == plain
    numbers = [getattr(params, f.name) for f in fields(params) if f.name in (*whole, *real)]
    assert {type(x) for x in (*numbers, *params.logit_bias, *params.allowed_token_ids)} == {int, float}
    assert SamplingParams(temperature=np.float32(0.7)).temperature == float(np.float32(0.7))
