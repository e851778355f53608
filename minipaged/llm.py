"""One class to use any of the engines: text or token ids in, RequestOutputs out, in the order of the prompts.

    llm = LLM("smollm2-135m", engine=levels.load(3).Engine, num_blocks=512)
    outputs = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8))
    outputs[0].outputs[0].text                   with SamplingParams(n=3), outputs[0].outputs[1] and [2] too

The method names and the shapes of their arguments are vLLM's. Invariant: what is refused is refused before anything of
that call runs; a request that fails while it runs does not raise, its finish_reason is "error". (From level 01.)"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

from .checks import check_integer, show
from .config import DEFAULT_MODEL, EngineConfig
from .driver import AnyEngine, OnStep, Request, Run, shut_down
from .outputs import RequestOutput
from .prompts import read_source
from .sampling_params import SamplingParams

Prompt = str | list[int] | dict[str, Any]


class LLM:
    """engine: a level's Engine class, `levels.load(n).Engine`, or the finished one; options: EngineConfig's fields."""

    def __init__(
        self, model: str = DEFAULT_MODEL, *, engine: Callable[[EngineConfig], Any] | None = None, **options: Any
    ):
        self.engine: AnyEngine = (engine or finished_engine)(make_config(model=str(model), **options))
        self.tokenizer: Any = self.engine.desk.vocabulary.tokenizer

    def shutdown(self) -> None:
        """End what runs for this engine elsewhere; leaving a `with LLM(...) as llm` does so, and the program's end."""
        shut_down(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.shutdown()

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        priority: list[int] | None = None,
        on_step: OnStep = lambda run, outputs: None,
    ) -> list[RequestOutput]:
        """Run prompts to their ends: a prompt is text, a list of token ids, or {"prompt_token_ids": [...]}.

        One SamplingParams for all, or a list of the same length. on_step(run, outputs) is called after each step.
        Raises ValueError or TypeError before anything runs; KeyboardInterrupt after Ctrl-C, with nothing left running.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        token_ids = [encode_prompt(prompt, self.tokenizer) for prompt in as_list(prompts)]
        return self.run(token_ids, params, priority, on_step)

    def chat(
        self,
        messages: list[dict[str, Any]] | list[list[dict[str, Any]]],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        on_step: OnStep = lambda run, outputs: None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, through the model's chat template.

        A message is {"role": text, "content": text, or a list of parts {"type": "text", "text": text}}.
        Without sampling_params an answer may be as long as max_model_len allows."""
        params = SamplingParams(max_tokens=None) if sampling_params is None else sampling_params
        several = isinstance(messages, list) and bool(messages) and isinstance(messages[0], list)
        chats: list[Any] = messages if several else [messages]
        return self.run([read_source("messages", chat, self.tokenizer) for chat in chats], params, None, on_step)

    def run(
        self,
        prompts: list[list[int]],
        params: SamplingParams | list[SamplingParams],
        priority: list[int] | None,
        on_step: OnStep,
    ) -> list[RequestOutput]:
        each = params if isinstance(params, list) else [params] * len(prompts)
        priorities = [0] * len(prompts) if priority is None else priority
        for name, given in (("sampling_params", each), ("priority", priorities)):
            if len(given) != len(prompts):
                raise ValueError(f"{len(prompts)} prompts but {len(given)} {name}")
        for prompt, one, urgency in zip(prompts, each, priorities, strict=True):
            self.engine.desk.check(prompt, one)
            check_integer("priority", urgency, -(2**63), 2**63 - 1)
        run = Run(self.engine, [Request(*wanted) for wanted in zip(prompts, each, priorities, strict=True)])
        if run.go(on_step).interrupted:
            raise KeyboardInterrupt
        return [record.output for record in run.records if record.output]


def finished_engine(config: EngineConfig) -> Any:
    """One engine in this process, or several behind a router."""
    if config.data_parallel_size > 1:
        from .parallel.data_parallel import DataParallelEngine

        return DataParallelEngine(config)
    from .engine import Engine  # late: it brings torch, and whoever only configures needs none
    from .parallel.backends import make_executor

    return Engine(config, executor=make_executor(config))


def encode_prompt(prompt: Prompt, tokenizer: Any) -> list[int]:
    if isinstance(prompt, dict):
        if len(prompt) != 1 or not set(prompt) <= {"prompt", "prompt_token_ids"}:
            raise ValueError(f"a prompt has one key, prompt or prompt_token_ids, not {sorted(prompt)}")
        [(source, value)] = prompt.items()
        return read_source(source, value, tokenizer)
    return read_source("prompt", prompt, tokenizer) if isinstance(prompt, str) else prompt


def as_list(prompts: Prompt | list[Prompt]) -> list[Any]:
    """A list of prompts; a single one, which may itself be a list (of token ids), becomes a list of one."""
    if isinstance(prompts, str | dict):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise TypeError(f"prompts must be text, token ids, a dict, or a list of them, not {show(prompts)}")
    return [prompts] if prompts and isinstance(prompts[0], int) else list(prompts)


def make_config(**options: Any) -> EngineConfig:
    """EngineConfig, with a sentence for what is no field. Raises ValueError with its name."""
    if unknown := set(options) - {f.name for f in fields(EngineConfig)}:
        raise ValueError(f"EngineConfig has no field {min(unknown)!r}")
    return EngineConfig(**options)
