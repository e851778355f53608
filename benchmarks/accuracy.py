"""What fewer bits cost in accuracy: the same text read by the same model, kept in each of the ways.

    python -m benchmarks.accuracy [--model M] [--ways none int8 none+int8 ...] [--json FILE]

    perplexity      e ^ (mean of -log p(token)) over the tokens of accuracy.txt, which is prose of this project's own,
                    in windows of --window tokens that know nothing of each other
    logit error     |logits - float32's| / |float32's|, over all rows and words; of rows whose mean is taken away,
                    since what is added to all words alike changes nothing
    same word       rows in which the likeliest word is float32's

A way is a quantization (config.py), and behind a + the dtype of the KV cache if it is another; `none` is the first and
what the others are compared with. Arithmetic is float32 everywhere, on a CPU. Expected: int8 within 1 % of float32's
perplexity. Of the default model int4 is closer still, for its file has 4 bits a weight already, on a grid of the same
kind: that says nothing about other models."""

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import describe_commit, describe_machine, describe_versions
from minipaged.batch import Batch
from minipaged.config import DEFAULT_MODEL, EngineConfig
from minipaged.loading import load_model
from minipaged.runner import ModelRunner

TEXT = Path(__file__).parent / "accuracy.txt"
WAYS = ("none", "int8", "int4", "none+int8", "none+fp8", "int8+int8")


def read_windows(runner: ModelRunner, size: int) -> list[list[int]]:
    """accuracy.txt in tokens, all windows of the same size; what is left at its end is not read."""
    token_ids: list[int] = runner.vocabulary.tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"]
    windows = [token_ids[i : i + size] for i in range(0, len(token_ids) - size + 1, size)]
    if not windows:
        raise ValueError(f"{TEXT.name} is {len(token_ids)} tokens here, less than a window of {size}")
    return windows


def read_logits(runner: ModelRunner, token_ids: list[int]) -> Tensor:
    """[T, V], of every token of one window."""
    one = list(range(len(token_ids)))
    batch = Batch(token_ids, one, one, [0, len(one)], [len(one)], [[0]], one, [0, len(one)], [], [])
    return runner(batch, runner.new_kv_cache(num_blocks=1, block_size=len(one)))


class Sums:
    """Of all windows of one way."""

    def __init__(self) -> None:
        self.nats = self.words = self.rows = self.agreed = 0.0
        self.error, self.size = torch.zeros(2), torch.zeros(2)  # squared; plain, and without each row's mean

    def add(self, token_ids: list[int], logits: Tensor, exact: Tensor) -> None:
        """logits, exact [T, V]; the last row's word is not in the window."""
        logprobs = logits[:-1].log_softmax(-1)
        self.nats -= float(logprobs.gather(1, torch.tensor(token_ids[1:])[:, None]).double().sum())
        self.words += len(token_ids) - 1
        self.agreed += int((logits.argmax(-1) == exact.argmax(-1)).sum())
        self.rows += len(token_ids)
        for i, center in enumerate((0.0, exact.mean(-1, keepdim=True))):
            moved = center if i == 0 else logits.mean(-1, keepdim=True)
            self.error[i] += ((logits - moved) - (exact - center)).square().sum()
            self.size[i] += (exact - center).square().sum()

    def document(self) -> dict[str, float]:
        plain, centered = (self.error / self.size).sqrt().tolist()
        return {
            "perplexity": math.exp(self.nats / self.words),
            "logit_error": plain,
            "centered_logit_error": centered,
            "same_word": self.agreed / self.rows,
        }


def load_way(model: str, way: str) -> ModelRunner:
    quantization, _, kept = way.partition("+")
    about = EngineConfig(model=model, device="cpu", dtype="float32")
    return load_model(replace(about, quantization=quantization, kv_cache_dtype=kept or "auto"))


def measure(model: str, ways: list[str], window: int) -> dict[str, Any]:
    """One way after the other, so that only float32's logits and one model are in memory."""
    results: dict[str, Any] = {}
    exact: list[Tensor] = []
    for way in ways:
        runner, sums = load_way(model, way), Sums()
        windows = read_windows(runner, window)
        for i, token_ids in enumerate(windows):
            logits = read_logits(runner, token_ids)
            if len(exact) <= i:
                exact.append(logits)
            sums.add(token_ids, logits, exact[i])
        results[way] = {"weight_bytes": runner.model.num_weight_bytes, **sums.document()}
        results[way]["perplexity_ratio"] = results[way]["perplexity"] / results[ways[0]]["perplexity"]
        show(way, results[way])
    return {"model": model, "window": window, "windows": len(windows), "ways": results}


def show(way: str, result: dict[str, float]) -> None:
    text = f"{result['perplexity']:8.3f}  x {result['perplexity_ratio']:.4f}  {result['logit_error']:.4f}"
    rest = f"{result['centered_logit_error']:.4f}  {100 * result['same_word']:5.1f} %"
    print(f"{way:<10} {result['weight_bytes'] / 1e6:7.1f} MB  {text}  {rest}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="the first is compared with")
    parser.add_argument("--window", type=int, default=512, help="tokens read without what was before them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document, with machine and commit")
    args = parser.parse_args()
    print("way          weights  perplexity  of float32  logit error  centered  same word", file=sys.stderr)
    document = measure(args.model, args.ways, args.window)
    if args.json:
        about = {"machine": describe_machine(), "versions": describe_versions(), "commit": describe_commit()}
        args.json.write_text(json.dumps({**about, **document}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
