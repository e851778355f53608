"""Deltas join to the one-shot decoding, never end in half a character, and are never taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from minipaged.detokenizer import BROKEN, Detokenizer

from .tiny_tokenizer import BYTES, PIECES, byte_fallback_tokenizer, tiny_tokenizer

FIRE = [0xF0, 0x9F, 0x94, 0xA5]
TEXTS = {
    "emoji": "on 🔥 fire 🔥🔥, a family 👩‍👩‍👧 and a flag 🇫🇷",
    "combining marks": "e\u0301 a\u0308 n\u0303o, क्षि",
    "cjk": "今日は世界。叫び、你好 한국어",
    "leading spaces": "   three, \n  two,\n\tand a tab ",
    "code": "def f(x):\n    return  x  # done",
    "a broken character that was meant": f"a {BROKEN} b {BROKEN}",
}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return Tokenizer.from_file(str(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")) / "tokenizer.json"))


@pytest.fixture(scope="module")
def real():
    from minipaged.models.hub import resolve_model

    return Tokenizer.from_file(str(resolve_model("smollm2-135m") / "tokenizer.json"))


@pytest.fixture(scope="module")
def pieces():
    return byte_fallback_tokenizer()


def ids(*names):
    return [PIECES.index(f"<0x{name:02X}>" if isinstance(name, int) else name) for name in names]


def deltas(tokenizer, token_ids, skip_special_tokens=True):
    """One for each token, and the flush."""
    stream = Detokenizer(tokenizer).stream(skip_special_tokens)
    return [*(stream.append([token_id]) for token_id in token_ids), stream.flush()]


def check_stream(tokenizer, token_ids, skip_special_tokens=True):
    decode = Detokenizer(tokenizer)
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
    said = deltas(tokenizer, token_ids, skip_special_tokens)
    assert "".join(said) == whole == decode(token_ids, skip_special_tokens)
    assert not any(delta.endswith(BROKEN) for delta in said[:-1]), "half a character"
    shown = ""
    for n, delta in enumerate(said[:-1], 1):
        shown += delta
        assert decode(token_ids[:n], skip_special_tokens, so_far=True) == shown


def test_the_bytes_of_one_character_are_shown_with_the_last_of_them(pieces):
    assert deltas(pieces, ids(*FIRE)) == ["", "", "", "🔥", ""]
    assert deltas(pieces, ids("▁x", *FIRE, *FIRE)) == ["x", "", "", "", "🔥", "", "", "", "🔥", ""]


@pytest.mark.default_model
def test_and_so_are_those_of_a_real_tokenizer(real):
    fire = real.encode("🔥", add_special_tokens=False).ids
    assert len(fire) > 1
    assert deltas(real, fire) == [*[""] * (len(fire) - 1), "🔥", ""]


def test_spaces_at_the_beginning_of_pieces_stay(pieces):
    assert deltas(pieces, ids("▁", "▁leading", "▁x")) == ["", " leading", " x", ""]
    assert deltas(pieces, ids("▁Hello", "▁world")) == ["Hello", " world", ""]
    assert deltas(pieces, ids("▁x", "▁", "▁▁", "▁x")) == ["x", " ", "  ", " x", ""]


def test_what_never_becomes_a_character_comes_with_the_flush(pieces):
    assert deltas(pieces, ids("▁x", *FIRE[:2])) == ["x", "", "", BROKEN * 2]
    assert deltas(pieces, ids("▁x", 0x80, "▁x")) == ["x", "", f"{BROKEN} x", ""]


def test_a_byte_that_fits_nowhere_does_not_take_back_what_was_shown(pieces):
    token_ids = ids(*FIRE, 0x80, "▁x")
    assert pieces.decode(token_ids) == f"{BROKEN * 5} x"
    assert deltas(pieces, token_ids)[3:] == ["🔥", "", f"{BROKEN} x", ""]
    assert deltas(pieces, ids(*FIRE, *FIRE[:2]))[3:] == ["🔥", "", "", BROKEN * 2]


def test_nothing_is_flushed_twice(pieces):
    stream = Detokenizer(pieces).stream()
    stream.append(ids(0xF0))
    assert [stream.flush(), stream.flush(), stream.text] == [BROKEN, "", BROKEN]


def test_special_tokens_are_left_out_unless_somebody_wants_them(pieces, words):
    token_ids = ids("<s>", "▁Hello", "</s>")
    assert deltas(pieces, token_ids) == ["", "Hello", "", ""]
    assert "".join(deltas(pieces, token_ids, skip_special_tokens=False)) == pieces.decode(token_ids, False)
    assert deltas(words, [1, 7, 2, 8]) == ["", "w7", "", " w8", ""]
    assert "".join(deltas(words, [1, 7, 2], skip_special_tokens=False)) == "<|im_start|> w7 <|im_end|>"


def test_a_model_without_a_tokenizer_says_nothing():
    decode = Detokenizer(None)
    assert [decode([1, 2]), decode([1, 2], so_far=True), decode([])] == ["", "", ""]


def runs(token_ids):
    """Bytes that stand together, special tokens not counted."""
    run = bytearray()
    for token_id in [*token_ids, PIECES.index("▁")]:
        if PIECES[token_id] in BYTES:
            run.append(BYTES.index(PIECES[token_id]))
        elif token_id > 2:
            yield bytes(run)
            run.clear()


def is_text(run):
    try:
        run.decode()
    except UnicodeDecodeError:
        return False
    return True


PIECE = st.sampled_from(PIECES).map(lambda piece: ids(piece)) | st.sampled_from("🔥叫é x").map(
    lambda c: ids(*c.encode())
)


@given(token_ids=st.lists(PIECE, max_size=8).map(lambda parts: [i for part in parts for i in part]), skip=st.booleans())
def test_deltas_of_pieces_and_bytes_join_to_the_whole(pieces, token_ids, skip):
    if all(map(is_text, runs(token_ids))):
        check_stream(pieces, token_ids, skip)
    else:  # a decoder that spoils whole characters for the sake of a byte cannot be followed; it still never fails
        assert len("".join(deltas(pieces, token_ids, skip))) >= 1


@given(token_ids=st.lists(st.integers(0, 95), max_size=12), skip=st.booleans())
def test_deltas_of_words_join_to_the_whole(words, token_ids, skip):
    check_stream(words, token_ids, skip)


@pytest.mark.default_model
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_script_comes_out_as_it_went_in(real, text):
    token_ids = real.encode(text, add_special_tokens=False).ids
    assert "".join(deltas(real, token_ids)) == text
    check_stream(real, token_ids)


@pytest.mark.default_model
@given(data=st.data())
def test_deltas_of_any_tokens_of_the_default_model_join_to_the_whole(real, data):
    token = st.integers(0, 49_151) | st.integers(0, 400)  # specials and single bytes are among the first
    check_stream(real, data.draw(st.lists(token, max_size=20)), data.draw(st.booleans()))


@pytest.mark.default_model
def test_the_whole_is_what_transformers_says(real):
    from transformers import AutoTokenizer

    from minipaged.models.hub import resolve_model

    theirs = AutoTokenizer.from_pretrained(resolve_model("smollm2-135m"))
    for text in TEXTS.values():
        token_ids = [1, *theirs(text).input_ids, 2]
        for skip in (True, False):
            assert Detokenizer(real)(token_ids, skip) == theirs.decode(token_ids, skip_special_tokens=skip)
