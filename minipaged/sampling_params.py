"""What one request asks of the sampler: how random, how long, and when to stop.

    SamplingParams(temperature=0)                        greedy: the most likely token, always
    SamplingParams(temperature=0.8, top_p=0.9, seed=7)   random, and the same every time
    SamplingParams(max_tokens=None)                      as long as max_model_len allows
    SamplingParams(n=3)                                  three answers to one prompt
    SamplingParams(stop=["\n\n", "User:"])               until one of these stands in the text

Names, meanings, defaults and legal ranges are vLLM's (`vllm.SamplingParams`). Whatever is out of range is refused
here, before an engine sees it. One deliberate difference: `n` goes with greedy too, as in OpenAI's API, and then gives
equal answers. No tensors: the arithmetic is in `sampling.py`. (From level 01.)"""

from dataclasses import dataclass

from .checks import check_boolean, check_integer, check_number, check_token_ids
from .text import check_text

GREEDY_BELOW = 1e-5  # logits divided by a smaller temperature overflow, and would mean "the most likely token" anyway
MAX_CHOICES = 128  # what a request may ask for over HTTP: one call shall not fill the queue by itself


@dataclass(frozen=True)
class SamplingParams:
    """Frozen, checked at construction.

    n               how many answers to generate: choices, each a sequence of its own. In [1, 128].
    temperature     0 (or below 1e-5) is greedy; 1 samples the model's own distribution. In [0, inf).
    top_p           keep the smallest set of tokens whose probabilities add up to top_p. In (0, 1]; 1 is off.
    top_k           keep the k most likely tokens. 0, -1, or at least the vocabulary's size: off.
    min_p           keep tokens at least min_p times as likely as the most likely one. In [0, 1]; 0 is off.
    seed            the same seed draws the same tokens, alone or in company. None: the engine chooses one.
                    The first choice draws from it, every other one from a seed derived of it (`choice_seed`).
    max_tokens      generate at most so many tokens, >= 1; None: up to max_model_len.
    min_tokens      generate at least so many before anything but max_tokens may end the request, >= 0.
    stop            end as soon as one of these strings, none empty, stands in the text, which is cut before it.
                    token_ids keep every token up to the one that completed it. A single string is a list of one.
    include_stop_str_in_output  cut behind the stop string, not before.
    stop_token_ids  end after any of these; it stays in token_ids, not in text.
    ignore_eos      an end-of-sequence token does not end the request (stop_token_ids still do).
    skip_special_tokens  leave special tokens out of the text.
    num_speculative_tokens  where the engine guesses ahead: fewer for this request, >= 0. None: as many as it does.

    Raises ValueError for a value out of range, TypeError for a wrong type; both name the field."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        check_integer("n", self.n, 1, MAX_CHOICES)
        check_number("temperature", self.temperature, 0)
        check_number("top_p", self.top_p, 0, 1, above_low=True)
        check_integer("top_k", self.top_k, -1)
        check_number("min_p", self.min_p, 0, 1)
        check_integer("seed", self.seed, -(2**63), 2**63 - 1, optional=True)
        check_integer("max_tokens", self.max_tokens, 1, optional=True)
        check_integer("min_tokens", self.min_tokens, 0, self.max_tokens)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            check_boolean(name, getattr(self, name))
        check_integer("num_speculative_tokens", self.num_speculative_tokens, 0, optional=True)
        object.__setattr__(self, "stop_token_ids", check_token_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "stop", check_stop(self.stop))

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def check_stop(value: object) -> tuple[str, ...]:
    """value must be text, or a list of texts, none of them empty; None is none."""
    strings = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple):
        raise TypeError(f"stop must be text or a list of texts, not {value!r}")
    for i, string in enumerate(strings):
        check_text(f"stop[{i}]", string)
        if not string:
            raise ValueError(f"stop[{i}] must have at least one character, not {string!r}")
    return tuple(strings)
