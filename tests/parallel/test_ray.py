"""Ray places the ranks, in a cluster that is started for the test; without Ray this is skipped."""

import pytest

from minipaged.config import EngineConfig
from minipaged.engine import Engine
from minipaged.sampling_params import SamplingParams

from ..tiny import greedy_tokens, tiny_model
from .processes import NAME, gone, new_mark

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'minipaged[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402 (after it is known to be there)

from minipaged.parallel.ray import RayCluster  # noqa: E402 (it needs Ray)

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


def test_actors_say_what_transformers_says_and_are_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setenv(NAME, mark := new_mark())
    folder = tiny_model(tmp_path)
    split = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    engine = Engine(EngineConfig(model=str(folder), num_blocks=64, max_model_len=64, **split))
    engine.add_request([2, 3, 4], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert [outputs[0].outputs[0].token_ids] == greedy_tokens(folder, [[2, 3, 4]], 6)
    engine.shutdown()
    assert not ray.is_initialized()
    assert gone(mark, 20.0)


def test_two_nodes_with_a_rank_each_say_what_one_process_says(tmp_path, monkeypatch):
    """Nodes as Ray's own tests have them: on one machine, each with its own store and scheduler."""
    monkeypatch.setenv(NAME, mark := new_mark())
    folder = tiny_model(tmp_path)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        split = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
        engine = Engine(EngineConfig(model=str(folder), num_blocks=64, max_model_len=64, **split))
        assert [node["Resources"]["CPU"] for node in ray.nodes()] == [1, 1], "so none has both ranks"
        engine.add_request([2, 3, 4], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
        while engine.has_unfinished_requests():
            outputs = engine.step()
        assert [outputs[0].outputs[0].token_ids] == greedy_tokens(folder, [[2, 3, 4]], 6)
        engine.shutdown()
    finally:
        cluster.shutdown()
    assert gone(mark, 20.0)


def test_the_cluster_of_whoever_comes_later_is_left_alone(monkeypatch):
    cluster, ends = object.__new__(RayCluster), []
    cluster.is_ours, cluster.actors, cluster.serving = True, [], []
    monkeypatch.setattr(ray, "shutdown", lambda: ends.append(1))
    for _ in range(2):
        cluster.stop(0.0)
    assert ends == [1]


def test_a_cluster_that_is_too_small_is_refused_with_both_numbers(tmp_path):
    folder = tiny_model(tmp_path, num_hidden_layers=128)
    with pytest.raises(ValueError, match=r"ray has \d+ CPUs, and 128 ranks need one each"):
        Engine(EngineConfig(model=str(folder), pipeline_parallel_size=128, distributed_executor_backend="ray"))
    assert not ray.is_initialized()
