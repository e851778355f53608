"""What stop strings mean, in the fewest words: quadratic, and plainly right.

ended(pieces, params)      after how many pieces (one a token) the text ends, by which string, and the text
shown(text, params)        what of a text that goes on is certain to stay
judge()                    StopStrings against both, over thousands of small texts"""

from itertools import accumulate
from random import Random

from tokenizers import Tokenizer, decoders, models

from minipaged.detokenizer import Detokenizer
from minipaged.sampling_params import SamplingParams
from minipaged.stop_strings import StopStrings

PIECES = ("a", "b", "ab", "ba", "bc", "abcab", "ccc", "c", "", " b")
BYTES = (b"a", b"\xc3", b"\xa9", b"\xf0", b"\x9f")
STOPS = ("a", "ab", "abc", "bca", "aab", "cab", "c b", "ccab", "bb")


def pieces_tokenizer() -> Tokenizer:
    """Token i is PIECES[i], and the last, which has no text, is special."""
    names = [piece or "<special>" for piece in PIECES]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="a"))
    tokenizer.add_special_tokens(["<special>"])
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def ended(pieces: list[str], params: SamplingParams) -> tuple[int, str, str] | None:
    for n, text in enumerate(accumulate(pieces), 1):
        before = len(text) - len(pieces[n - 1])
        hits = [
            (i, i + len(stop), stop)
            for stop in params.stop
            for i in range(len(text))
            if text.startswith(stop, i) and i + len(stop) > before
        ]
        if hits and n >= params.min_tokens:
            begin, end, stop = min(hits)
            return n, stop, text[: end if params.include_stop_str_in_output else begin]
    return None


def shown(text: str, params: SamplingParams) -> str:
    def may_become_a_stop(end: str) -> bool:
        return any(stop.startswith(end) and stop != end for stop in params.stop)

    if params.include_stop_str_in_output:
        return text
    return next((text[:cut] for cut in range(len(text)) if may_become_a_stop(text[cut:])), text)


def text_of(pieces: list[str], params: SamplingParams, finish_reason: str | None, stop_reason: object) -> str:
    """The text of an output with these tokens."""
    if isinstance(stop_reason, str):
        end = ended(pieces, params)
        assert end is not None, f"{stop_reason!r} is nowhere in {pieces}"
        assert end[:2] == (len(pieces), stop_reason), "a stop string ends it where it is complete"
        return end[2]
    text = "".join(pieces[:-1] if finish_reason == "stop" else pieces)
    return text if finish_reason else shown(text, params)


def watch(tokenizer: Tokenizer, token_ids: list[int], params: SamplingParams) -> None:
    pieces = ["" if token_id == PIECES.index("") else PIECES[token_id] for token_id in token_ids]
    stops, end = StopStrings(params, Detokenizer(tokenizer).stream), ended(pieces, params)
    last = ""
    for n, token_id in enumerate(token_ids, 1):
        found = stops.completed_by(token_id)
        assert found == (end[1] if end and n == end[0] else None), (pieces, params, n, end)
        assert stops.shown.startswith(last), "what was shown stays"
        last = stops.shown
        if found:
            assert stops.shown == stops.reader(True) == end[2], (pieces, params, end)
            return
        text = "".join(pieces[:n])
        read = stops.reader
        assert (stops.shown, read(False), read(True)) == (shown(text, params), stops.shown, text), (pieces, params, n)


def bytes_tokenizer() -> Tokenizer:
    """Token i is BYTES[i]."""
    spelled = dict(zip(BYTES, "aÃ©ðŁ", strict=True))  # as ByteLevel writes them
    tokenizer = Tokenizer(models.WordLevel({spelled[byte]: i for i, byte in enumerate(BYTES)}, unk_token="a"))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def end(tokenizer: Tokenizer, token_ids: list[int], stop: str) -> None:
    """Whatever is broken when no more tokens come: the text that is over is all before the stop string."""
    stops = StopStrings(SamplingParams(stop=stop), Detokenizer(tokenizer).stream)
    found = next((one for token_id in token_ids if (one := stops.completed_by(token_id))), None)
    cut, text = stops.reader(True), tokenizer.decode(token_ids)
    assert cut == text.partition(stop)[0], (token_ids, stop)
    if not found:
        assert stops.completed_by_the_end() == (stop if stop in text else None), (token_ids, stop)
        assert stops.reader(True) == cut, (token_ids, stop)


def judge() -> None:
    tokenizer, rng = bytes_tokenizer(), Random(0)
    for _ in range(1000):
        token_ids = rng.choices(range(len(BYTES)), k=rng.randint(1, 5))
        end(tokenizer, token_ids, rng.choice(["\N{REPLACEMENT CHARACTER}", "a\N{REPLACEMENT CHARACTER}", "é", "a"]))
    tokenizer = pieces_tokenizer()
    for _ in range(3000):
        token_ids = [rng.randrange(len(PIECES)) for _ in range(rng.randint(0, 8))]
        stop = rng.sample(STOPS, rng.randint(1, 3))
        params = SamplingParams(
            stop=stop, min_tokens=rng.choice([0, 0, 1, 2, 3, 5]), include_stop_str_in_output=rng.random() < 0.3
        )
        watch(tokenizer, token_ids, params)
