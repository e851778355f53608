"""Every peer gives exactly the tokens it was asked for, and greedy engines in float32 give the same ones."""

import pytest

from benchmarks.peers import check_peer, is_slow, make_peer
from benchmarks.workloads import Request, make_requests
from tests.tiny import greedy_tokens, tiny_model

PEERS = (
    "minipaged:1",
    "minipaged:2",
    "minipaged:3",
    "transformers:one",
    "transformers:static16",
    "transformers:continuous",
)
REQUESTS = make_requests("W2", 256, 0, scale=1 / 32)[:18]  # two batches of 16, the second nearly empty


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every third token ends a text here: to ignore that is part of the job."""
    return tiny_model(tmp_path_factory.mktemp("peers"), vocab_size=256, eos_token_id=list(range(0, 256, 3)))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Each request alone on the same weights, where nothing ends a text."""
    endless = tiny_model(tmp_path_factory.mktemp("endless"), vocab_size=256)
    longest = max(request.max_tokens for request in REQUESTS)
    alone = greedy_tokens(endless, [request.prompt_token_ids for request in REQUESTS], longest)
    return [tokens[: request.max_tokens] for tokens, request in zip(alone, REQUESTS, strict=True)]


@pytest.mark.parametrize("name", PEERS)
def test_all_peers_agree_with_generate_on_each_request_alone(folder, expected, name):
    rung = []
    answer = make_peer(name, folder).run(REQUESTS, lambda: rung.append(True))
    assert answer.token_ids == expected
    assert rung == [True]


@pytest.mark.parametrize("name", PEERS)
def test_a_single_token_rings_too(folder, name):
    rung = []
    answer = make_peer(name, folder).run([Request([101, 102, 103], 1)], lambda: rung.append(True))
    assert [len(tokens) for tokens in answer.token_ids] == [1]
    assert rung == [True]


def test_only_ours_know_their_time_inside_the_model(folder):
    request = [Request([101, 102], 2)]
    assert make_peer("minipaged:3", folder).run(request, lambda: None).model_s > 0
    assert make_peer("transformers:one", folder).run(request, lambda: None).model_s is None


@pytest.mark.parametrize("name", PEERS)
def test_settings_are_on_record(folder, name):
    settings = make_peer(name, folder).describe()
    if name.startswith("minipaged"):
        assert settings["config"]["max_model_len"] == 2048
    else:
        assert settings["dtype"] == "torch.float32"
        assert settings["num_tokens"] == 32768 if name.endswith("continuous") else settings["batch_size"] in (1, 16)


@pytest.mark.parametrize(
    "name",
    [
        "minipaged",
        "minipaged:0",
        "minipaged:99",
        "minipaged:3-int7",
        "transformers:static0",
        "llamacpp:f32",
        "vllm:int8",
        "",
    ],
)
def test_an_unknown_engine_is_refused_by_its_name(name):
    with pytest.raises(ValueError, match=f"engine '{name}' is none of"):
        check_peer(name)


def test_only_one_at_a_time_is_slow():
    assert [name for name in PEERS if is_slow(name)] == ["transformers:one"]
