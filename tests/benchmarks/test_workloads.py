"""The workloads are what they say, the same every time and never the same twice."""

import pytest

from benchmarks.workloads import WORKLOADS, choose_subset, make_requests

V = 1000


def prompts(name, **options):
    return [request.prompt_token_ids for request in make_requests(name, V, 0, **options)]


def outputs(name, **options):
    return [request.max_tokens for request in make_requests(name, V, 0, **options)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_ids_are_ordinary_tokens_of_the_vocabulary(name):
    ids = {token for prompt in prompts(name) for token in prompt}
    assert min(ids) >= 100
    assert max(ids) < V


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_repetition_is_the_same_every_time_and_every_other_one_is_new(name):
    assert make_requests(name, V, 0) == make_requests(name, V, 0)
    for other in ({"repetition": 1}, {"repetition": "warm-up"}, {"repetition": 0, "seed": 1}):
        first = make_requests(name, V, **other)[0].prompt_token_ids
        assert first[:16] != prompts(name)[0][:16]  # nor is there a first block that a cache could know


def test_w1_is_one_request_of_128_and_128():
    assert [len(prompt) for prompt in prompts("W1")] == outputs("W1") == [128]


def test_w2_is_64_requests_of_mixed_lengths():
    lengths = [len(prompt) for prompt in prompts("W2")]
    assert len(lengths) == 64
    assert 32 <= min(lengths) < 64 < 224 < max(lengths) <= 256
    assert 16 <= min(outputs("W2")) < 48 < 224 < max(outputs("W2")) <= 256


def test_w3_is_32_requests_that_share_exactly_512_tokens():
    shared = [prompt[:512] for prompt in prompts("W3")]
    own = [tuple(prompt[512:]) for prompt in prompts("W3")]
    assert shared == shared[:1] * 32
    assert len({tokens[:4] for tokens in own}) == 32
    assert {len(tokens) for tokens in own} <= set(range(16, 33))
    assert outputs("W3") == [32] * 32


def test_w4_is_8_prompts_of_1024_and_one_output_each():
    assert [len(prompt) for prompt in prompts("W4")] == [1024] * 8
    assert outputs("W4") == [1] * 8


@pytest.mark.parametrize("name", WORKLOADS)
def test_scale_shortens_requests_and_keeps_their_number(name):
    full, small = prompts(name), prompts(name, scale=1 / 16)
    assert len(full) == len(small)
    assert sum(map(len, small)) < sum(map(len, full)) / 12
    assert min(map(len, small)) >= 1
    assert min(outputs(name, scale=1e-6)) == 1


def test_a_vocabulary_without_ordinary_tokens_is_refused():
    with pytest.raises(ValueError, match=r"\[100, V\).*96"):
        make_requests("W1", 96, 0)


def test_a_subset_is_seeded_sorted_and_never_larger_than_what_there_is():
    assert choose_subset("W2", 64, 8, 0) == choose_subset("W2", 64, 8, 0) == sorted(set(choose_subset("W2", 64, 8, 0)))
    assert choose_subset("W2", 64, 8, 0) != choose_subset("W2", 64, 8, 1)
    assert choose_subset("W4", 8, 20, 0) == list(range(8))
