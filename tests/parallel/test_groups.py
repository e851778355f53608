"""What one says in a group all hear; alone, nothing is said; nobody waits for ever."""

from random import Random

import pytest
import torch

from minipaged.parallel.groups import Alone
from minipaged.parallel.place import Layout, Place
from tests.parallel.jobs import add_up, converse, relay, wait_for_nothing


def test_alone_nothing_changes_and_nothing_is_sent():
    place, x = Place.alone(), torch.randn(2, 3)
    for hear in (place.tensor.all_reduce, place.tensor.all_gather, place.tensor.gather):
        assert hear(x) is x
    assert not place.traffic.num_messages
    with pytest.raises(AssertionError, match="no next stage"):
        Alone().send_on(x)


def test_everybody_hears_everybody(crew):
    first, second = crew.run(Layout(tensor_size=2), converse)
    assert first["all_reduce"] == second["all_reduce"] == [[10.0, 12.0, 14.0]] * 2
    assert first["all_gather"] == second["all_gather"] == [[0.0, 1.0, 2.0, 10.0, 11.0, 12.0]] * 2
    assert first["all_gather_0"] == second["all_gather_0"] == [[0.0, 1.0, 2.0]] * 2 + [[10.0, 11.0, 12.0]] * 2
    assert first["gather"] == first["all_gather"]
    assert first["strided"] == [[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 11.0, 11.0], [2.0, 2.0, 12.0, 12.0]]
    assert second["gather"] == second["strided"] == []
    assert first["num_bytes"] == {"all_reduce": 24, "all_gather": 48}
    assert second["num_bytes"] == {"all_reduce": 24, "all_gather": 48, "gather": 48}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_ranks_have_the_same_bits_afterwards(crew, dtype):
    rng = Random(1)
    values = [[rng.gauss(0, 1) * 10 ** rng.randint(-4, 4) for _ in range(257)] for _ in range(4)]
    said = crew.run(Layout(tensor_size=4), add_up, values, dtype)
    assert said[0] == said[1] == said[2] == said[3]
    expected = torch.tensor(values, dtype=dtype).double().sum(0)
    eps = torch.finfo(dtype).eps
    error = (torch.tensor(said[0]).double() - expected).abs()
    assert (error <= 4 * eps * torch.tensor(values).double().abs().sum(0)).all()


def test_messages_that_nobody_has_taken_yet_hold_nobody_up_for_ever(crew):
    said = crew.run(Layout(num_stages=3), relay, 20)
    assert said == [[], [], [[float(i + 2)] for i in range(20)]]


def test_nobody_waits_longer_than_the_time_out(crew, tmp_path):
    _, (seconds, error) = crew.run(Layout(num_stages=2), wait_for_nothing, str(tmp_path / "over"), timeout_s=1.0)
    assert 0.5 < seconds < 10.0
    assert "1000ms" in error or "imeout" in error or "imed out" in error
