"""What one request asks of the sampler: how random, how long, what rather not, and when to stop.

    SamplingParams(temperature=0)                        greedy: the most likely token, always
    SamplingParams(temperature=0.8, top_p=0.9, seed=7)   random, and the same every time
    SamplingParams(max_tokens=None)                      as long as max_model_len allows
    SamplingParams(n=3)                                  three answers to one prompt
    SamplingParams(stop=["\n\n", "User:"])               until one of these stands in the text
    SamplingParams(logprobs=5)                           and what the model thought of each token

Names, meanings, defaults and legal ranges are vLLM's (`vllm.SamplingParams`). Whatever is out of range is refused
here, before an engine sees it. One deliberate difference: `n` goes with greedy too, as in OpenAI's API, and then gives
equal answers. No tensors: the arithmetic is in `sampling.py`. (From level 01.)"""

from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from .checks import (
    check_boolean,
    check_integer,
    check_number,
    check_structure,
    check_token_bias,
    check_token_ids,
    show,
)
from .text import check_text

GREEDY_BELOW = 1e-5  # logits divided by a smaller temperature overflow, and would mean "the most likely token" anyway
TINY, HUGE = 1e-30, 1e30  # what is beyond counts as these: float32 holds them, and could tell no difference
MAX_BIAS = 100.0  # a larger one counts as this, as in vLLM: it bans or forces a token as it is
MAX_CHOICES = 128  # what a request may ask for over HTTP: one call shall not fill the queue by itself


@dataclass(frozen=True)
class SamplingParams:
    """Frozen, checked at construction.

    n               how many answers to generate: choices, each a sequence of its own. In [1, 128].
    temperature     0 (or below 1e-5) is greedy; 1 samples the model's own distribution. In [0, inf); beyond 1e30,
                    where all tokens are equally likely, it counts as 1e30.
    top_p           keep the smallest set of tokens whose probabilities add up to top_p. In (0, 1]; 1 is off.
    top_k           keep the k most likely tokens. 0, -1, or at least the vocabulary's size: off.
    min_p           keep tokens at least min_p times as likely as the most likely one. In [0, 1]; 0 is off.
    presence_penalty    taken from the logit of every token that is in the output. In [-2, 2]; 0 is off.
    frequency_penalty   the same, times how often it is in the output. In [-2, 2]; 0 is off.
    repetition_penalty  divides positive logits of tokens in prompt or output, multiplies negative ones. > 0; 1 is off;
                    beyond [1e-30, 1e30] it counts as 1e-30 or 1e30.
    logit_bias      {token id: number}, added to its logit; beyond [-100, 100] it counts as -100 or 100.
    allowed_token_ids   nothing else is said; not empty. None: everything is allowed.
    seed            the same seed draws the same tokens, alone or in company. None: the engine chooses one.
                    The first choice draws from it, every other one from a seed derived of it (`choice_seed`).
    max_tokens      generate at most so many tokens, >= 1; None: up to max_model_len.
    min_tokens      neither EOS nor stop token before so many are out, and a stop string is looked for from then on.
                    In [0, max_tokens]; ignore_eos changes nothing.
    stop            end as soon as one of these strings, none empty, stands in the text, which is cut before it.
                    token_ids keep every token up to the one that completed it. A single string is a list of one.
    include_stop_str_in_output  cut behind the stop string, not before.
    stop_token_ids  end after any of these; it stays in token_ids, not in text.
    ignore_eos      an end-of-sequence token does not end the request (stop_token_ids still do).
    skip_special_tokens  leave special tokens out of the text.
    structured_outputs  what the answer must look like, from level 03 on: {"json": a schema, as a dict or text} or
                    {"regex": a pattern of Python's re, for all of the answer} or {"choice": [texts]} or {"grammar":
                    xgrammar's EBNF, whose rule is root}. What cannot be kept is refused, as `languages/` says; some
                    text must satisfy it. Not with ignore_eos.
    logprobs        report the log-probabilities of each token and of the so many likeliest, by the model's own
                    distribution: before penalties, temperature and all else. >= 0; -1: of all; None: of none.
    prompt_logprobs     the same for each prompt token but the first, which follows nothing.
    num_speculative_tokens  where the engine guesses ahead: fewer for this request, >= 0. None: as many as it does.

    Raises ValueError for a value out of range, TypeError for a wrong type; both name the field."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: dict[str, Any] | None = field(default=None, hash=False)
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        self.check_chances()
        self.check_limits()
        self.check_text()
        self.check_tokens()
        self.make_plain()

    def make_plain(self) -> None:
        """A number of numpy's is Python's from here on: seeds are mixed in 64 bits, and all may change process."""
        for f in fields(self):
            value: Any = getattr(self, f.name)
            kind: type = type(value)
            if kind not in (bool, int, float) and issubclass(kind, Real):
                object.__setattr__(self, f.name, int(value) if issubclass(kind, Integral) else float(value))

    def check_text(self) -> None:
        object.__setattr__(self, "stop", check_stop(self.stop))
        check_structure("structured_outputs", self.structured_outputs)
        if self.structured_outputs and self.ignore_eos:
            raise ValueError("ignore_eos goes with no structured_outputs: nothing may follow the end of a grammar")

    def check_tokens(self) -> None:
        object.__setattr__(self, "stop_token_ids", check_tokens("stop_token_ids", self.stop_token_ids))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", clip(check_token_bias("logit_bias", self.logit_bias)))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", check_tokens("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ValueError("allowed_token_ids must have at least one token id, not none")

    def check_chances(self) -> None:
        check_number("temperature", self.temperature, 0)
        object.__setattr__(self, "temperature", min(self.temperature, HUGE))
        check_number("top_p", self.top_p, 0, 1, above_low=True)
        check_integer("top_k", self.top_k, -1)
        check_number("min_p", self.min_p, 0, 1)
        check_number("presence_penalty", self.presence_penalty, -2, 2)
        check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        check_number("repetition_penalty", self.repetition_penalty, 0, above_low=True)
        object.__setattr__(self, "repetition_penalty", min(max(self.repetition_penalty, TINY), HUGE))
        check_integer("seed", self.seed, -(2**63), 2**63 - 1, optional=True)

    def check_limits(self) -> None:
        check_integer("n", self.n, 1, MAX_CHOICES)
        check_integer("max_tokens", self.max_tokens, 1, optional=True)
        check_integer("min_tokens", self.min_tokens, 0, self.max_tokens)
        check_integer("logprobs", self.logprobs, -1, optional=True)
        check_integer("prompt_logprobs", self.prompt_logprobs, -1, optional=True)
        check_integer("num_speculative_tokens", self.num_speculative_tokens, 0, optional=True)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            check_boolean(name, getattr(self, name))

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def cuts(self) -> bool:
        """Whether unlikely tokens are never drawn."""
        return self.min_p > 0 or self.top_k > 0 or self.top_p < 1

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far matter."""
        return self.repetition_penalty != 1 or self.penalises_output

    @property
    def penalises_output(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def biased(self) -> bool:
        """Whether single tokens are favoured or forbidden, wherever they stand."""
        return bool(self.logit_bias or self.allowed_token_ids)


def clip(biases: dict[int, float]) -> dict[int, float]:
    return {token_id: min(max(bias, -MAX_BIAS), MAX_BIAS) for token_id, bias in biases.items()}


def check_tokens(name: str, value: object) -> tuple[int, ...]:
    """A set of token ids, each once: they are asked for at every token, and a list may be of any length."""
    return tuple(dict.fromkeys(check_token_ids(name, value)))


def check_stop(value: object) -> tuple[str, ...]:
    """value must be text, or a list of texts, none of them empty; None is none."""
    strings = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple):
        raise TypeError(f"stop must be text or a list of texts, not {show(value)}")
    for i, string in enumerate(strings):
        check_text(f"stop[{i}]", string)
        if not string:
            raise ValueError(f"stop[{i}] must have at least one character, not {string!r}")
    return tuple(strings)
