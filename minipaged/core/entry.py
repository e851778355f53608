"""Our copy of a request that runs elsewhere: it grows by what is new, and by the engine's own code.

    there   tokens 5 6 | 7 8 9         a report: 8 9 are new
    here    tokens 5 6 | 7        ->   append(8), append(9): text, stop strings and ends come out as they did there

Invariant: after each report the copy says what the engine would have said of its own. (From level 07.)"""

from dataclasses import dataclass
from typing import NamedTuple

from ..outputs import RequestOutput
from ..sequence import Sequence
from .messages import Gain, News
from .router import Replica


class Told(NamedTuple):
    """What a request is told; by its ticket, for another may have its id by now."""

    ticket: int
    output: RequestOutput


@dataclass
class Entry:
    """A request on its way."""

    ticket: int
    replica: Replica
    choices: list[Sequence]

    @property
    def request_id(self) -> str:
        return self.choices[0].request_id

    def take(self, news: News) -> None:
        first = self.choices[0]
        for gain in news.gains:
            append(self.choices[gain.index], gain, news.error)
        if news.error is not None and not news.gains:
            self.fail(news.error)
        first.num_preemptions = news.num_preemptions
        first.prompt_scores = first.prompt_scores if news.prompt_scores is None else news.prompt_scores

    def fail(self, error: str) -> None:
        """All that have not ended do so now."""
        for seq in self.choices:
            if not seq.finished:
                seq.fail(error)

    def end(self, reason: str) -> None:
        for seq in self.choices:
            seq.finish_reason = seq.finish_reason or reason


def append(seq: Sequence, gain: Gain, error: str | None) -> None:
    for token_id in gain.token_ids:
        seq.append(token_id)
    seq.num_computed_tokens = len(seq.tokens) - 1
    seq.scores += gain.scores
    seq.num_cached_tokens = gain.num_cached_tokens
    if gain.finish_reason == "error":
        seq.fail(error or "")
    elif gain.finish_reason:
        seq.finish_reason, seq.stop_reason = gain.finish_reason, gain.stop_reason
