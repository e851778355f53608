"""From a body to what the engine is asked: text becomes tokens, and whatever could not run is refused here.

    short      a thread that is free                              a million characters take seconds, and a body has
    long       one thread, one text after the other               room for eight: all threads would be busy with a few
    too long   refused before it is read, where that is sure: so many characters are more tokens than fit

Invariant: what is read here can run alone on this engine; a short text never waits behind a long one. Raises ValueError
or TypeError in the words of whoever refuses. (From level 08.)"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ..desk import FrontDesk
from ..sampling_params import SamplingParams
from ..text import encode, encode_chat, write_chat
from ..text import tokenize as to_tokens
from .answers import Asked
from .chat_completions import ChatShape, check_roles
from .completions import CompletionShape
from .protocol import ChatRequest, CompletionRequest, DetokenizeRequest, GenerationRequest, TokenizeRequest
from .structure import check_size

LONG_BYTES = 64 << 10  # of a body: a tenth of a second to read
T = TypeVar("T")


class Readers:
    """Threads for whoever reads."""

    def __init__(self) -> None:
        self.long = ThreadPoolExecutor(1, thread_name_prefix="long-texts")

    async def read(self, num_bytes: int, work: Callable[..., T], *args: Any) -> T:
        """What work returns. A text whose client has gone while it waited is not read at all."""
        threads = self.long if num_bytes > LONG_BYTES else None  # None: asyncio's own
        return await asyncio.get_running_loop().run_in_executor(threads, partial(work, *args))


def read_completion(
    body: CompletionRequest, desk: FrontDesk, request_id: str, name: str
) -> tuple[Asked, CompletionShape]:
    params = read_params(body)
    prompts = [tokenize(desk, prompt) for prompt in body.prompts]
    echoed = [spell(desk, prompt) for prompt in body.prompts] if body.echo else []
    shape = CompletionShape(request_id, name, body, desk.vocabulary.decode, echoed)
    return admit(desk, body, prompts, params), shape


def read_chat(body: ChatRequest, desk: FrontDesk, request_id: str, name: str) -> tuple[Asked, ChatShape]:
    params = read_params(body)
    check_roles(body.messages)
    text = write_chat(desk.vocabulary.tokenizer, body.messages)
    check_length(desk, text)
    prompt = to_tokens(desk.vocabulary.tokenizer, text, add_special_tokens=False)
    return admit(desk, body, [prompt], params), ChatShape(request_id, name, body)


def read_params(body: Any) -> SamplingParams:
    body.check()
    params: SamplingParams = body.to_params()
    check_size(params.structured_outputs)
    return params


def admit(desk: FrontDesk, body: GenerationRequest, prompts: list[list[int]], params: SamplingParams) -> Asked:
    priority = body.priority or 0
    for prompt in prompts:
        desk.check(prompt, params)
    desk.check_place(None, priority, body.cache_salt)
    return Asked(prompts, params, priority, body.cache_salt)


def tokenize(desk: FrontDesk, prompt: str | list[int]) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    check_length(desk, prompt)
    return encode(desk.vocabulary.tokenizer, prompt)


def check_length(desk: FrontDesk, text: str) -> None:
    """Raises ValueError for a text that cannot fit, whatever its tokens are."""
    room, most = desk.config.max_model_len - 1, desk.vocabulary.most_characters
    if most is not None and len(text) > room * most:
        raise ValueError(
            f"the prompt has {len(text)} characters, which are at least {-(-len(text) // most)} tokens; max_model_len "
            f"{room + 1} leaves room for {room}"
        )


def spell(desk: FrontDesk, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else desk.vocabulary.decode(prompt)


def tokenize_request(body: TokenizeRequest, desk: FrontDesk) -> dict[str, Any]:
    if (body.prompt is None) == (body.messages is None):
        raise ValueError("prompt or messages is needed, and not both")
    tokenizer = desk.vocabulary.tokenizer
    if body.messages is not None:
        check_roles(body.messages)
        token_ids = encode_chat(tokenizer, body.messages)
    else:
        token_ids = encode(tokenizer, body.prompt or "", add_special_tokens=body.add_special_tokens)
    texts = tokenizer.convert_ids_to_tokens(token_ids) if body.return_token_strs else None
    return {"count": len(token_ids), "tokens": token_ids, "token_strs": texts}


def detokenize(body: DetokenizeRequest, desk: FrontDesk) -> str:
    if desk.vocabulary.tokenizer is None:
        raise ValueError("this model has no tokenizer: there is no text")
    if body.tokens:
        desk.check_token_ids(body.tokens)
    return desk.vocabulary.decode(body.tokens, skip_special_tokens=False)
