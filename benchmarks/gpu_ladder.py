"""The ladder on a GPU: what each level makes of the same requests, and what transformers does.

    python -m benchmarks.gpu_ladder --out FILE [--dry-run]

256 requests at once, prompts of 32 to 256 tokens, as many outputs, greedy, to exactly their lengths: W2 with four times
the company. One model a shape serves all levels, with fresh memory for each; each level runs the workload once to
compile and record, then once, with fresh token ids, for the clock. transformers runs the first few requests one at a
time, and all of them by its continuous batching; what it does not get done is said in its own words. The shapes:
gpu_shapes.py. A dry run has a tiny one, on a CPU."""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import torch

from benchmarks.gpu_shapes import make_folder
from benchmarks.workloads import Draw, Request
from levels import NAMES, load
from minipaged import EngineConfig, SamplingParams
from minipaged.driver import Request as Wanted
from minipaged.driver import Run, shut_down
from minipaged.loading import load_model
from minipaged.runner import ModelRunner

Record = dict[str, Any]
NUM_REQUESTS, NUM_ALONE = 256, 4
MAX_MODEL_LEN = 1024


def make_requests(model: str, vocab_size: int, repetition: str, num_requests: int, scale: float) -> list[Request]:
    draw = Draw(f"gpu/{model}/{repetition}", vocab_size, scale)
    return [Request(draw.tokens(draw.between(32, 256)), draw.between(16, 256)) for _ in range(num_requests)]


def record(name: str, requests: list[Request], wall_s: float, model_s: float | None = None) -> Record:
    num_outputs = sum(request.max_tokens for request in requests)
    rate = num_outputs / wall_s
    facts = {"num_requests": len(requests), "output_tokens": num_outputs, "wall_s": wall_s, "model_s": model_s}
    return {"engine": name, **facts, "output_tokens_per_s": rate, "error": None}


def run_level(number: int, model: ModelRunner, config: EngineConfig, workloads: list[list[Request]]) -> Record:
    """The last of the workloads is timed."""
    engine = load(number).Engine(config, model)
    try:
        for requests in workloads:
            params = [SamplingParams(temperature=0, max_tokens=r.max_tokens, ignore_eos=True) for r in requests]
            prompts = [request.prompt_token_ids for request in requests]
            run = Run(engine, [Wanted(*pair) for pair in zip(prompts, params, strict=True)]).go()
            for told, request in zip(run.records, requests, strict=True):
                assert told.num_tokens == request.max_tokens, f"{told.num_tokens} tokens of {request.max_tokens}"
        return record(NAMES[number - 1], workloads[-1], run.wall_s, run.model_s)
    finally:
        shut_down(engine)


def ladder(shape: str, folder: Path, device: str, num_requests: int, scale: float) -> Iterator[Record]:
    budget = 8192 if device == "cuda" else 64
    wish = EngineConfig(
        str(folder), device, load_format="dummy", max_num_seqs=num_requests, max_model_len=MAX_MODEL_LEN
    )
    if device == "cpu":
        wish = replace(wish, max_model_len=64, num_blocks=4 * num_requests)
    model = load_model(wish)
    repeat = [make_requests(shape, model.vocab_size, str(i), num_requests, scale) for i in range(2)]
    for number, name in enumerate(NAMES, 1):
        config = wish if number < 3 else replace(wish, max_num_batched_tokens=budget)
        yield attempt(name, partial(run_level, number, model, config, repeat))
        free()


def peers(shape: str, folder: Path, device: str, num_requests: int, scale: float) -> Iterator[Record]:
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    requests = make_requests(shape, config.vocab_size, "0", num_requests, scale)
    alone = requests[:NUM_ALONE]
    yield attempt("transformers, one at a time", lambda: run_alone(model, alone))
    page_size = 256 if device == "cuda" else 8
    yield attempt("transformers, continuous", lambda: run_continuous(model, requests, page_size))


@torch.inference_mode()
def run_alone(model: Any, requests: list[Request]) -> Record:
    for timed in (False, True):
        start = time.perf_counter()
        for token_ids, num_tokens in requests if timed else requests[:1]:
            ids = torch.tensor([token_ids], device=model.device)
            said = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens)
            assert said.shape[1] == len(token_ids) + num_tokens
        wall_s = time.perf_counter() - start
    return record("transformers, one at a time", requests, wall_s)


def run_continuous(model: Any, requests: list[Request], page_size: int) -> Record:
    """The manager is kept between the warm-up, a few of the requests, and all."""
    from transformers import ContinuousBatchingConfig

    pages = sum(-(-(len(r.prompt_token_ids) + r.max_tokens) // page_size) for r in requests)
    settings = ContinuousBatchingConfig(num_blocks=pages, page_size=page_size)
    manager = model.init_continuous_batching(continuous_batching_config=settings)
    starter = Thread(target=manager.start, daemon=True)  # a daemon's threads are daemons: none outlives this process
    starter.start()
    starter.join()
    for part in (requests[:NUM_ALONE], requests):
        start = time.perf_counter()
        finish(manager, [manager.add_request(ids, max_new_tokens=n, streaming=False) for ids, n in part])
        wall_s = time.perf_counter() - start
    return record("transformers, continuous", requests, wall_s)


def finish(manager: Any, ids: list[str], limit_s: float = 120) -> None:
    """Raises RuntimeError with the manager's reason, or when it has been silent for too long."""
    waiting, since = set(ids), time.perf_counter()
    while waiting:
        output = manager.get_result(timeout=1)
        if output is not None:
            if output.error:
                raise RuntimeError(output.error)
            waiting -= {output.request_id} if output.is_finished() else set()
            since = time.perf_counter()
        elif not manager.is_running() or time.perf_counter() - since > limit_s:
            raise RuntimeError(f"{len(waiting)} of {len(ids)} requests were never answered")


def attempt(name: str, work: Callable[[], Record]) -> Record:
    """Whatever goes wrong with one engine is its own figure; the others are measured all the same."""
    try:
        made = work()
    except Exception as error:
        made = {"engine": name, "output_tokens_per_s": None, "error": f"{type(error).__name__}: {error}"}
    rate = made["error"] or f"{made['output_tokens_per_s']:>10.1f} output tokens/s in {made['wall_s']:.2f} s"
    print(f"{name:<32} {rate}", flush=True)
    return made


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_ladder", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the document's file")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on a CPU: no claim")
    args = parser.parse_args()
    device, num_requests, scale = ("cpu", 5, 1 / 16) if args.dry_run else ("cuda", NUM_REQUESTS, 1.0)
    document: dict[str, list[Record]] = {}
    with TemporaryDirectory() as parent:
        for shape in ("tiny",) if args.dry_run else ("default", "8B"):
            print(f"== {shape}, {num_requests} requests at once")
            folder, document[shape] = make_folder(shape, Path(parent)), []
            for kind in (ladder, peers):
                for made in kind(shape, folder, device, num_requests, scale):
                    document[shape].append(made)
                    args.out.write_text(json.dumps(document, indent=1))  # a time limit leaves what was measured
                free()
    levels = (made for records in document.values() for made in records if made["engine"] in NAMES)
    return int(any(made["error"] for made in levels))  # what transformers does not get done is no failure of ours


if __name__ == "__main__":
    sys.exit(main())
