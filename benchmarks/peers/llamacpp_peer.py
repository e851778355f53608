"""llama.cpp through its own C interface: requests take turns in slots, as they do in its server.

    slots 4    A p p p p p g g g g | E p p g g g        p: a prompt's tokens, g: one token a step
               B p p g g g g g g                        every step decodes all slots' next tokens in one batch, and
               C p p p g | F p p p p g g                fills it up with prompts, up to n_batch tokens
               D ...

This loop is ours: the Python package has none for several requests. The steps are llama_decode's, the token is the
logits' largest. The memory holds MAX_LEN tokens a slot, in 16 bits, as is its default; a prompt that another request
began with is computed again, as in the server, where only a slot's own last request may be its beginning."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp as api
import numpy as np

from benchmarks.machine import count_cores
from benchmarks.workloads import Request

from . import Answer
from .environments import converted

QUIET = api.llama_log_callback(lambda level, text, data: None)
MAX_LEN = 1280  # tokens a slot; the longest request of the workloads has 1,025


def make(folder: Path, variant: str) -> "LlamaPeer":
    kind, _, num_slots = variant.partition("-")
    return LlamaPeer(converted(folder, f"{kind}.gguf"), int(num_slots))


class Slot:
    """One request on its way: `pending` are the tokens that have not been decoded yet."""

    def __init__(self, index: int, request: Request):
        self.index, self.pending, self.num_left = index, list(request.prompt_token_ids), request.max_tokens
        self.num_decoded, self.said = 0, list[int]()


class LlamaPeer:
    """Raises RuntimeError when llama.cpp refuses."""

    def __init__(self, path: Path, num_slots: int):
        api.llama_log_set(QUIET, ctypes.c_void_p(0))
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot read {path}")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = MAX_LEN * num_slots, num_slots
        params.n_threads = params.n_threads_batch = count_threads()
        self.context = api.llama_init_from_model(self.model, params)
        self.batch_size = int(api.llama_n_batch(self.context))
        self.batch = api.llama_batch_init(self.batch_size, 0, 1)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.path, self.num_slots = path, num_slots

    def describe(self) -> dict[str, Any]:
        sizes = {"n_batch": self.batch_size, "n_ubatch": int(api.llama_n_ubatch(self.context))}
        return {"llama_cpp": api.__version__, "slots": self.num_slots, "file": self.path.name, **sizes}

    def run(self, requests: list[Request], on_first: Callable[[], None]) -> Answer:
        waiting, slots, answers = list(enumerate(requests))[::-1], dict[int, tuple[int, Slot]](), {}
        rung = False
        while waiting or slots:
            for index in range(self.num_slots):
                if index not in slots and waiting:
                    number, request = waiting.pop()
                    slots[index] = number, Slot(index, request)
            self.step([slot for _, slot in slots.values()])
            for index, (number, slot) in list(slots.items()):
                if slot.said and not rung:
                    rung = True
                    on_first()
                if not slot.num_left:
                    answers[number] = slot.said
                    api.llama_memory_seq_rm(api.llama_get_memory(self.context), index, -1, -1)
                    del slots[index]
        return Answer([answers[number] for number in range(len(requests))])

    def step(self, slots: list[Slot]) -> None:
        """Whoever has one token left to decode first, then prompts as far as the batch goes."""
        self.batch.n_tokens, sampled = 0, []
        for slot in sorted(slots, key=lambda slot: len(slot.pending)):
            num_tokens = min(len(slot.pending), self.batch_size - self.batch.n_tokens)
            self.fill(slot, num_tokens)
            if num_tokens and not slot.pending:
                self.batch.logits[self.batch.n_tokens - 1] = True
                sampled.append((slot, self.batch.n_tokens - 1))
        if code := api.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama_decode: {code}")
        for slot, row in sampled:
            logits = np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, row), shape=(self.vocab_size,))
            token = int(logits.argmax())
            slot.said.append(token)
            slot.num_left -= 1
            slot.pending = [token]

    def fill(self, slot: Slot, num_tokens: int) -> None:
        for token in slot.pending[:num_tokens]:
            i = self.batch.n_tokens
            self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, slot.num_decoded, False
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, slot.index
            self.batch.n_tokens, slot.num_decoded = i + 1, slot.num_decoded + 1
        del slot.pending[:num_tokens]


def count_threads() -> int:
    """What the harness gave; llama.cpp does not read it by itself."""
    return int(os.environ.get("OMP_NUM_THREADS") or count_cores())
