"""transformers as people use it: `generate`, one request after the other or in padded batches that run to their
longest, and its continuous batching (what `generate_batch` runs on), which takes all requests at once.

    . . . p p p | g g g g          static batches: prompts are padded on the left, so that all continue at one place;
    p p p p p p | g x x x          x: what a request did not ask for is generated all the same, and not counted

Requests are taken in the order given. float32, the attention transformers chooses itself. Continuous batching keeps its
manager between runs, as a server would, and gets as much KV memory as the other engines."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from benchmarks.workloads import Request

from . import Answer

PAD = 0  # never looked at, thanks to the mask
PAGE_SIZE, NUM_TOKENS = 256, 32768  # of the continuous kind's KV memory: its own default page, and room for all of W3


def make(folder: Path, variant: str) -> "TransformersPeer | ContinuousPeer":
    if variant == "continuous":
        return ContinuousPeer(folder)
    return TransformersPeer(folder, 1 if variant == "one" else int(variant.removeprefix("static")))


def load_model(folder: Path) -> Any:
    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # without an end-of-sequence token in here nothing ends early and no token is forbidden
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=PAD)
    return model


class TransformersPeer:
    def __init__(self, folder: Path, batch_size: int):
        self.model, self.batch_size = load_model(folder), batch_size

    def describe(self) -> dict[str, Any]:
        attention = self.model.config._attn_implementation
        return {"batch_size": self.batch_size, "dtype": str(self.model.dtype), "attention": attention}

    def run(self, requests: list[Request], on_first: Callable[[], None]) -> Answer:
        streamer = FirstToken(on_first)
        starts = range(0, len(requests), self.batch_size)
        batches = [self.generate(requests[i : i + self.batch_size], streamer) for i in starts]
        return Answer([tokens for batch in batches for tokens in batch])

    def generate(self, requests: list[Request], streamer: BaseStreamer) -> list[list[int]]:
        token_ids, mask = pad_left([request.prompt_token_ids for request in requests])
        longest = max(request.max_tokens for request in requests)
        rows = self.model.generate(token_ids, attention_mask=mask, max_new_tokens=longest, streamer=streamer)
        answers = rows[:, token_ids.shape[1] :].tolist()
        return [answer[: request.max_tokens] for answer, request in zip(answers, requests, strict=True)]


class ContinuousPeer:
    def __init__(self, folder: Path):
        self.model = load_model(folder)
        settings = ContinuousBatchingConfig(num_blocks=NUM_TOKENS // PAGE_SIZE, page_size=PAGE_SIZE)
        self.manager = self.model.init_continuous_batching(continuous_batching_config=settings)
        # a daemon's threads are daemons: one that waits for requests must not keep this process from ending
        starter = Thread(target=self.manager.start, daemon=True)
        starter.start()
        starter.join()

    def describe(self) -> dict[str, Any]:
        attention = self.model.config._attn_implementation
        return {"num_tokens": NUM_TOKENS, "dtype": str(self.model.dtype), "attention": attention}

    def run(self, requests: list[Request], on_first: Callable[[], None]) -> Answer:
        """Raises RuntimeError with the manager's reason if a request fails."""
        ids = [
            self.manager.add_request(request.prompt_token_ids, max_new_tokens=request.max_tokens, streaming=True)
            for request in requests
        ]
        said: dict[str, list[int]] = {}
        finished: set[str] = set()
        while len(finished) < len(ids):
            if (output := self.manager.get_result(timeout=1)) is None:
                if not self.manager.is_running():
                    raise RuntimeError("the thread that generates has ended")
                continue
            if output.error:
                raise RuntimeError(output.error)
            if not said:
                on_first()
            said[output.request_id] = output.generated_tokens
            finished |= {output.request_id} if output.is_finished() else set()
        return Answer([list(said[request_id]) for request_id in ids])


def pad_left(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and mask, [S, longest prompt]."""
    width = max(map(len, prompts))
    token_ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return token_ids, mask


class FirstToken(BaseStreamer):
    """`generate` puts the prompt first and then each new token: the second put is the first token."""

    def __init__(self, ring: Callable[[], None]):
        self.ring, self.num_puts = ring, 0

    def put(self, value: Tensor) -> None:
        self.num_puts += 1
        if self.num_puts == 2:
            self.ring()

    def end(self) -> None:
        """Of one batch; nothing is kept."""
