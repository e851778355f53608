"""Every level gives transformers' greedy tokens through the Triton kernels too, interpreted where there is no GPU."""

import pytest
import torch

from levels import load
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.sampling_params import SamplingParams
from tests.kernels.guard import DEVICE

from .tiny import KINDS, greedy_tokens, tiny_model

PROMPTS = [[3, 14, 15, 92, 65, 35, 89], [7, 9]]
NUM_TOKENS = 4
FEW_BLOCKS = {"num_blocks": 24, "block_size": 4, "max_model_len": 32}
CHUNKED = {**FEW_BLOCKS, "num_blocks": 3, "max_num_batched_tokens": 4}  # so few that somebody gives way
RUNS = [(1, "llama", FEW_BLOCKS), (2, "llama", FEW_BLOCKS), *((3, kind, CHUNKED) for kind in (*KINDS, "qwen2_moe"))]


def test_a_narrow_cache_says_the_same_through_the_kernels_as_through_a_cpus_loops(tmp_path):
    folder, said = tiny_model(tmp_path, hidden_size=48, num_attention_heads=6), []
    for backend in ("torch", "triton"):
        asked = EngineConfig(
            model=str(folder),
            device=DEVICE,
            attention_backend=backend,
            kv_cache_dtype="int8",
            dtype="float32",
            **CHUNKED,
        )
        engine = load(3).Engine(asked, load_model(asked))
        engine.kv_cache.scales.fill_(torch.nan)
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        for prompt in PROMPTS:
            engine.add_request(prompt, params)
        outputs = {}
        while engine.has_unfinished_requests():
            outputs.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
        said.append(outputs)
    assert said[0] == said[1]


@pytest.mark.parametrize(("level", "kind", "sizes"), RUNS, ids=[f"{level:02}-{kind}" for level, kind, _ in RUNS])
def test_every_level_gives_transformers_tokens(level, kind, sizes, tmp_path):
    folder = tiny_model(tmp_path, kind, hidden_size=48, num_attention_heads=6)  # groups of 3
    asked = EngineConfig(model=str(folder), attention_backend="triton", dtype="float32", **sizes)
    engine = load(level).Engine(asked, load_model(asked))
    engine.kv_cache.data.fill_(torch.nan)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    ids = [engine.add_request(prompt, params) for prompt in PROMPTS]
    said = {}
    while engine.has_unfinished_requests():
        said.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
    assert [said[i] for i in ids] == greedy_tokens(folder, PROMPTS, NUM_TOKENS)
    assert (engine.config.attention_backend, engine.config.device) == ("triton", DEVICE)
    assert any(step.preempted for step in engine.trace.steps) == (level == 3)
