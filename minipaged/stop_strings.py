"""A text ends where a stop string begins, wherever the borders of tokens are; what may become one is not shown yet.

    stop = "STOP"       tokens   "Now"  " ST"   "AY"       " S"        "TO"        "P it"
                        text     Now    Now ST  Now STAY   Now STAY S  Now STAY STO ...STOP it
                        shown    Now    Now     Now STAY   Now STAY    Now STAY    Now STAY      and "stop"
                                            ^ a beginning of STOP waits until it is known not to be one

Of several that a token completes, the one that begins first counts; of two that begin together, the shorter. A stop
string is looked for from the min_tokens-th token on: one that is complete before then is text like any other.
Half a character is no text before it is whole, or the end has come. Invariant: what is shown is never taken back, and
holds back no more than the longest end that begins a stop string; no text that is over has one. (From level 01.)"""

from collections.abc import Callable
from copy import copy
from functools import partial

from .detokenizer import TextStream
from .sampling_params import SamplingParams


class StopStrings:
    """Watches one choice's text. open_stream: begins an empty one."""

    def __init__(self, params: SamplingParams, open_stream: Callable[[bool], TextStream]):
        self.params, self.open_stream = params, open_stream
        self.stream = open_stream(params.skip_special_tokens)
        self.num_searched = 0  # characters; what ends within them was looked for, or was not to be
        self.end: int | None = None  # of the text, once a stop string was found

    def anew(self) -> "StopStrings":
        """The same watch over another choice's text."""
        return StopStrings(self.params, self.open_stream)

    def completed_by(self, token_id: int) -> str | None:
        """Take a token, and return the stop string that it completes."""
        self.stream.append([token_id])
        return self.look()

    def completed_by_the_end(self) -> str | None:
        """No more tokens come: what was half a character is text, as broken as it is, and may complete one too."""
        if self.end is not None:
            return None
        self.stream.flush()
        return self.look()

    def look(self) -> str | None:
        found = self.search() if len(self.stream.token_ids) >= self.params.min_tokens else None
        self.num_searched = len(self.stream.text)
        return found

    def search(self) -> str | None:
        text, found = self.stream.text, []
        for stop in self.params.stop:
            begin = text.find(stop, max(0, self.num_searched + 1 - len(stop)))
            if begin >= 0:
                found.append((begin, begin + len(stop), stop))
        if not found:
            return None
        begin, end, stop = min(found)
        self.end = end if self.params.include_stop_str_in_output else begin
        return stop

    @property
    def shown(self) -> str:
        """What is certain to be part of the text."""
        return self.stream.text[: self.end] if self.end is not None else self.certain

    @property
    def certain(self) -> str:
        text = self.stream.text
        if self.params.include_stop_str_in_output:  # a beginning is shown whether it becomes one or not
            return text
        return text[: len(text) - max((count_begun(text, stop) for stop in self.params.stop), default=0)]

    @property
    def reader(self) -> Callable[[bool], str]:
        """Reads the text as it is here, whatever comes later; told whether it is over."""
        return partial(self.copy().read, len(self.stream.token_ids))

    def copy(self) -> "StopStrings":
        """It shares nothing with this one but the tokens, which grow."""
        other = copy(self)
        other.stream = copy(self.stream)
        return other

    def read(self, num_tokens: int, is_over: bool) -> str:
        """The text of so many tokens. Once it is over, nothing could become a stop string."""
        if not is_over:
            return self.shown
        over = self.copy()
        over.stream.token_ids = self.stream.token_ids[:num_tokens]
        over.completed_by_the_end()
        return over.stream.text[: over.end]


def count_begun(text: str, stop: str) -> int:
    """How many characters at text's end begin stop, without being all of it. A stop string may be a book: no more of
    it is looked at than there is text."""
    begin = text.find(stop[0], max(0, len(text) + 1 - len(stop)))
    while begin >= 0 and not stop.startswith(text[begin:]):
        begin = text.find(stop[0], begin + 1)
    return len(text) - begin if begin >= 0 else 0
