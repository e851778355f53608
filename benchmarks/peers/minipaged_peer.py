"""A level of the house, driven as everybody drives it: add_request, step, step, ...

Every level has the same model, the same KV memory and the same MAX_MODEL_LEN, so what differs is what the levels
differ in: at level 01 each request takes a row of MAX_MODEL_LEN slots out of that memory."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.workloads import Request
from levels import NAMES, load
from minipaged import EngineConfig, RequestOutput, SamplingParams
from minipaged.driver import Record, Run
from minipaged.driver import Request as Wanted
from minipaged.models.config import read_model_config

from . import MAX_MODEL_LEN, Answer


def make(folder: Path, variant: str) -> "MinipagedPeer":
    level, _, quantization = variant.partition("-")
    return MinipagedPeer(folder, int(level), {"quantization": quantization} if quantization else {})


class MinipagedPeer:
    def __init__(self, folder: Path, level: int, options: dict[str, Any]):
        longest = min(MAX_MODEL_LEN, read_model_config(folder).max_position_embeddings)
        config = EngineConfig(model=str(folder), dtype="float32", max_model_len=longest, **options)
        self.name, self.engine = NAMES[level - 1], load(level).Engine(config)

    def describe(self) -> dict[str, Any]:
        return {"level": self.name, "config": asdict(self.engine.config)}

    def run(self, requests: list[Request], on_first: Callable[[], None]) -> Answer:
        wanted = [Wanted(request.prompt_token_ids, make_params(request)) for request in requests]
        run = Run(self.engine, wanted)
        run.go(FirstToken(on_first))
        if run.interrupted:
            raise KeyboardInterrupt
        return Answer([read_tokens(record) for record in run.records], run.model_s)


def make_params(request: Request) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)


def read_tokens(record: Record) -> list[int]:
    """Raises RuntimeError with the engine's reason if it failed."""
    assert record.output, "a run that is over has an output for each request"
    if record.output.error:
        raise RuntimeError(record.output.error)
    return record.output.outputs[0].token_ids


class FirstToken:
    """An observer of steps that rings once."""

    def __init__(self, ring: Callable[[], None]):
        self.ring, self.rung = ring, False

    def __call__(self, run: Run, outputs: list[RequestOutput]) -> None:
        if outputs and not self.rung:
            self.rung = True
            self.ring()
