"""What may stand in a request: OpenAI's fields and vLLM's, each with what it must be.

    {"prompt": "Hi", "max_tokens": 8, "colour": "red"}    a field nobody knows is ignored, as OpenAI does
    {"prompt": "Hi", "max_tokens": "8"}                   refused: max_tokens must be a whole number >= 1, not "8"
    {"prompt": "Hi", "max_tokens": null}                  as if it were not there

A field's description says what it must be: it is the sentence of its refusal and the text of the OpenAPI document.
Types are checked here; ranges by SamplingParams and the front desk, as for everybody else; here are only the limits
that HTTP has and Python has not. Invariant: whatever passes is plain data, fit for SamplingParams, and Unicode.
(From level 08.)"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from ..sampling_params import SamplingParams
from .structure import check_plain, from_response_format

MAX_STOPS, MAX_TOP_LOGPROBS = 4, 20
MAX_PROMPTS, MAX_MESSAGES, MAX_BIASES = 4096, 10_000, 1 << 18  # more would keep everybody else waiting to be read
STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())
WHOLE = "a whole number"
Plain = Annotated[dict[str, Any], AfterValidator(check_plain)]
Text = Annotated[str, AfterValidator(check_plain)]
NotEmpty = Annotated[Text, StringConstraints(min_length=1)]
Stop = Annotated[list[Text], Field(max_length=MAX_STOPS, fail_fast=True)]
# the first fault ends the reading: a body has room for millions, each of which would be written down
Texts = Annotated[list[Text], Field(fail_fast=True, max_length=MAX_PROMPTS)]
Tokens = Annotated[list[int], Field(fail_fast=True)]
Prompts = Annotated[list[Tokens], Field(fail_fast=True, max_length=MAX_PROMPTS)]
Messages = Annotated[list[Plain], Field(fail_fast=True, max_length=MAX_MESSAGES)]
Biases = Annotated[dict[str, Any], Field(max_length=MAX_BIASES), AfterValidator(check_plain)]
Scores = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
SAMPLED = (
    *("n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens"),
    *("logit_bias", "allowed_token_ids", "skip_special_tokens"),
)


class StreamOptions(BaseModel):
    model_config = STRICT

    include_usage: bool | None = None


class GenerationRequest(BaseModel):
    """What completions and chat have in common."""

    model_config = STRICT

    model: Text | None = Field(None, description="the name of the model, text")
    n: int | None = Field(None, description=f"{WHOLE} in [1, 128]")
    max_tokens: int | None = Field(None, description=f"{WHOLE} >= 1")
    max_completion_tokens: int | None = Field(None, description=f"{WHOLE} >= 1; it goes before max_tokens")
    temperature: float | None = Field(None, description="a number >= 0")
    top_p: float | None = Field(None, description="a number in (0, 1]")
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(None, description='an object, like {"include_usage": true}')
    stop: Text | Stop | None = Field(None, description=f"text or a list of at most {MAX_STOPS} texts")
    presence_penalty: float | None = Field(None, description="a number in [-2, 2]")
    frequency_penalty: float | None = Field(None, description="a number in [-2, 2]")
    logit_bias: Biases | None = Field(
        None, description=f"an object from token ids to numbers, at most {MAX_BIASES} of them"
    )
    seed: int | None = Field(None, description=f"{WHOLE} of 64 bits")
    user: Text | None = Field(None, description="text")
    response_format: Plain | None = Field(None, description="an object with a type: text, json_object or json_schema")
    top_k: int | None = Field(None, description=f"{WHOLE} >= -1")
    min_p: float | None = Field(None, description="a number in [0, 1]")
    repetition_penalty: float | None = Field(None, description="a number > 0")
    min_tokens: int | None = Field(None, description=f"{WHOLE} >= 0")
    ignore_eos: bool | None = Field(None, description="true or false")
    stop_token_ids: Tokens | None = Field(None, description="a list of token ids")
    allowed_token_ids: Tokens | None = Field(None, description="a list of token ids")
    include_stop_str_in_output: bool | None = Field(None, description="true or false")
    skip_special_tokens: bool | None = Field(None, description="true or false")
    structured_outputs: Plain | None = Field(None, description="an object with json, regex, choice or grammar")
    priority: int | None = Field(None, description=f"{WHOLE}; smaller is more urgent")
    cache_salt: NotEmpty | None = Field(None, description="text of at least one character")

    def sampling_params(self, max_tokens: int | None, logprobs: int | None, **more: Any) -> SamplingParams:
        """Raises ValueError or TypeError, as SamplingParams does. max_tokens: where the request says nothing."""
        given = {name: value for name in SAMPLED if (value := getattr(self, name)) is not None}
        limits = (self.max_completion_tokens, self.max_tokens, max_tokens)
        limit = next((one for one in limits if one is not None), None)
        return SamplingParams(**given, max_tokens=limit, logprobs=logprobs, structured_outputs=self.structure, **more)

    @property
    def structure(self) -> dict[str, Any] | None:
        wanted = from_response_format(self.response_format)
        own = {k: v for k, v in (self.structured_outputs or {}).items() if v is not None} or None
        if wanted and own:
            raise ValueError("structured_outputs and response_format both say what the answer looks like")
        return wanted or own

    def check(self) -> None:
        """What no single field can know. Raises ValueError."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream true only")

    @property
    def words(self) -> dict[str, str]:
        """What the front desk's words are called in this request."""
        given = {"structured_outputs": "response_format", "max_tokens": "max_completion_tokens"}
        return {"prompt_token_ids": "prompt"} | {a: b for a, b in given.items() if getattr(self, b) is not None}

    @property
    def num_prompts(self) -> int:
        return 1

    @property
    def reports_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Text | Texts | Tokens | Prompts = Field(
        description=f"text or a list of token ids, or a list of at most {MAX_PROMPTS} of either"
    )
    echo: bool | None = Field(None, description="true or false")
    logprobs: Scores | None = Field(None, description=f"{WHOLE} in [0, {MAX_TOP_LOGPROBS}]")
    best_of: int | None = Field(None, description="as large as n: the best of more is not searched for")
    suffix: Text | None = Field(None, description="left out: nothing is written into a gap")

    def check(self) -> None:
        super().check()
        if self.suffix:
            raise ValueError("suffix is not supported: this model writes on, not into a gap")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError(f"best_of must be as large as n ({self.n or 1}), not {self.best_of}")

    @property
    def prompts(self) -> list[Any]:
        """One or more, each text or a list of token ids."""
        several = isinstance(self.prompt, list) and bool(self.prompt) and isinstance(self.prompt[0], str | list)
        return [*self.prompt] if several else [self.prompt]

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)

    def to_params(self) -> SamplingParams:
        scored = {"prompt_logprobs": self.logprobs} if self.echo else {}
        return self.sampling_params(16, self.logprobs, **scored)


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Messages = Field(
        description=f'a list of at most {MAX_MESSAGES} messages, each {{"role": text, "content": text}}'
    )
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: Scores | None = Field(None, description=f"{WHOLE} in [0, {MAX_TOP_LOGPROBS}]")
    tools: list[Any] | None = Field(None, description="left out: tool calls are not supported")
    tool_choice: Any = Field(None, description="left out: tool calls are not supported")
    functions: list[Any] | None = Field(None, description="left out: tool calls are not supported")
    function_call: Any = Field(None, description="left out: tool calls are not supported")

    @property
    def words(self) -> dict[str, str]:
        return super().words | {"the prompt": "messages"}

    def check(self) -> None:
        super().check()
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise ValueError(f"{name} is not supported: this server makes no tool calls")
        for name in ("tool_choice", "function_call"):
            if getattr(self, name) not in (None, "none", "auto"):
                raise ValueError(f"{name} is not supported: this server makes no tool calls")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs true only")

    def to_params(self) -> SamplingParams:
        return self.sampling_params(None, (self.top_logprobs or 0) if self.logprobs else None)


class TokenizeRequest(BaseModel):
    """POST /tokenize: a prompt, or messages through the chat template."""

    model_config = STRICT

    model: Text | None = Field(None, description="the name of the model, text")
    prompt: Text | None = Field(None, description="text")
    messages: Messages | None = Field(None, description=f"a list of at most {MAX_MESSAGES} messages")
    add_special_tokens: bool = Field(True, description="true or false")
    return_token_strs: bool = Field(False, description="true or false")


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = STRICT

    model: Text | None = Field(None, description="the name of the model, text")
    tokens: Tokens = Field(description="a list of token ids")


BODIES: dict[str, type[BaseModel]] = {  # what each route reads: one name may mean another thing on another route
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
FIELDS = frozenset(name for body in BODIES.values() for name in body.model_fields)
