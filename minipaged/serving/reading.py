"""From a body to what the engine is asked: text becomes tokens, and whatever could not run is refused here.

Done in a thread, because a long text takes its time and nobody else should wait for it. Invariant: what is read here
can run alone on this engine. Raises ValueError or TypeError in the words of whoever refuses. (From level 08.)"""

from typing import Any

from ..desk import FrontDesk
from ..sampling_params import SamplingParams
from ..text import encode, encode_chat
from .answers import Asked
from .chat_completions import ChatShape
from .completions import CompletionShape
from .protocol import ChatRequest, CompletionRequest, DetokenizeRequest, GenerationRequest, TokenizeRequest
from .structure import check_size


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
    prompt = encode_chat(desk.vocabulary.tokenizer, body.messages)
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
    return encode(desk.vocabulary.tokenizer, prompt) if isinstance(prompt, str) else prompt


def spell(desk: FrontDesk, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else desk.vocabulary.decode(prompt)


def tokenize_request(body: TokenizeRequest, desk: FrontDesk) -> dict[str, Any]:
    if (body.prompt is None) == (body.messages is None):
        raise ValueError("prompt or messages is needed, and not both")
    tokenizer = desk.vocabulary.tokenizer
    if body.messages is not None:
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
