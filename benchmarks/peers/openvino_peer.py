"""openvino-genai's continuous batching, in C++: all requests at once, one step after the other.

    float32   weights in 32 bits          float16   in 16, as its own converter leaves them; a matrix of either
              (rounded to 16 before)                is multiplied in float32, and so are keys and values kept

Its reader of GGUF files knows no 32-bit weights, so the model goes there in 16 bits and is widened in its own format,
once, beside the file. Prefix caching is on; everything else is at its default."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.workloads import Request

from . import Answer
from .environments import converted

CACHE_GB = 2  # all of W2 at once is 1.5
PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def make(folder: Path, variant: str) -> "OpenVinoPeer":
    return OpenVinoPeer(folder, variant)


class OpenVinoPeer:
    def __init__(self, folder: Path, variant: str):
        threads = int(os.environ.get("OMP_NUM_THREADS") or 0)  # 0: its own choice
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching = CACHE_GB, True
        file = converted(folder, "f16.gguf")
        options = {**PRECISION, "INFERENCE_NUM_THREADS": threads}
        self.pipeline = genai.ContinuousBatchingPipeline(
            str(find_model(folder, file, variant)), genai.Tokenizer(str(file)), scheduler, "CPU", **options
        )
        self.settings = {"openvino_genai": genai.__version__, "weights": variant, **options}
        self.settings["max_num_batched_tokens"] = scheduler.max_num_batched_tokens

    def describe(self) -> dict[str, Any]:
        return self.settings

    def run(self, requests: list[Request], on_first: Callable[[], None]) -> Answer:
        handles = [
            self.pipeline.add_request(i, ov.Tensor(np.array([request.prompt_token_ids])), make_config(request))
            for i, request in enumerate(requests)
        ]
        said: list[list[int]] = [[] for _ in requests]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for handle, tokens in zip(handles, said, strict=True):
                while handle.can_read():
                    if not any(said):
                        on_first()
                    for output in handle.read().values():  # new tokens, of the only answer
                        tokens += output.generated_ids
        return Answer(said)


def make_config(request: Request) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = request.max_tokens, True, False
    return config


def find_model(folder: Path, file: Path, variant: str) -> Path:
    """The folder of the model in OpenVINO's own format, made if need be."""
    target = converted(folder, f"{variant}.openvino")
    if not target.exists():
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.mkdir(parents=True)
        try:
            convert(file, partial, variant)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def convert(file: Path, target: Path, variant: str) -> None:
    """Its reader writes what it has read beside what it reads, so that stands in the target for as long as it takes."""
    copy = target / "model.gguf"
    copy.hardlink_to(file)
    genai.ContinuousBatchingPipeline(str(copy), genai.SchedulerConfig(), "CPU", {"enable_save_ov_model": True})
    copy.unlink()
    if variant == "float32":
        path = target / "openvino_model.xml"
        model = ov.Core().read_model(path)
        widen(model)
        ov.save_model(model, target / "wide.xml", compress_to_fp16=False)
        del model  # it may still read the file that goes
        for suffix in ("xml", "bin"):
            (target / f"wide.{suffix}").replace(target / f"openvino_model.{suffix}")


def widen(model: Any) -> None:
    """Every 16-bit constant in 32 bits, in the place of its conversion."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_output_element_type(0) == ov.Type.f16:
            wide = ov.opset13.constant(node.data.astype(np.float32))
            for reader in node.output(0).get_target_inputs():
                for user in reader.get_node().output(0).get_target_inputs():
                    user.replace_source_output(wide.output(0))
