"""Ranks and replicas keep their weights in codes too, and say what level 04 says with them in one process.

int8     a rank rounds its part of x by the largest in that part: near-ties may go either way, as with a narrow cache
int4     x stays as it is"""

import pytest

from levels import load
from minipaged.config import EngineConfig
from minipaged.driver import shut_down

from ..test_identity import NUM_TOKENS, PROMPTS
from ..test_kv_cache_dtype import answers, lead
from ..tiny import tiny_model

MEMORY = {"num_blocks": 128, "block_size": 4, "max_model_len": 64}
SPLITS = {
    "TP 2": (6, {"tensor_parallel_size": 2}),
    "TP 2 x PP 2": (6, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    "DP 2": (7, {"data_parallel_size": 2, "distributed_executor_backend": "uniproc"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # whole groups of 32 for each of two ranks
    return tiny_model(tmp_path_factory.mktemp("codes"), intermediate_size=64)


@pytest.mark.parametrize(
    ("way", "split"), [("int8", "TP 2 x PP 2"), ("int4", "TP 2"), ("int8", "DP 2"), ("int4", "DP 2")]
)
def test_codes_that_are_split_or_doubled_say_what_one_process_says(folder, way, split):
    level, fields = SPLITS[split]
    config = {"model": str(folder), "quantization": way, **MEMORY}
    expected = [said.token_ids[: lead(said)] for said in answers(load(4).Engine(EngineConfig(**config)))]
    assert sum(map(len, expected)) > 0.7 * NUM_TOKENS * len(PROMPTS), "too many near-ties to prove anything"
    engine = load(level).Engine(EngineConfig(**config, **fields))
    try:
        assert engine.config.quantization == way
        for said, due in zip(answers(engine), expected, strict=True):
            assert said.token_ids[: len(due)] == due
    finally:
        shut_down(engine)
