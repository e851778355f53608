"""A bad line is named by its number, before anything runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from minipaged.driver import Request
from minipaged.prompts import located, parse, parse_line, read_lines
from minipaged.sampling_params import SamplingParams

DEFAULTS = SamplingParams(temperature=0, max_tokens=5)


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(data)
    return path


def check_lines(path: Path) -> None:
    for number, wanted in read_lines(path):
        with located(f"{path}, line {number}"):
            parse(wanted, DEFAULTS)


def refusal(tmp_path: Path, data: bytes) -> str:
    """What reading and checking a file of these bytes says."""
    path = write(tmp_path, data)
    with pytest.raises(ValueError) as error:
        check_lines(path)
    assert "\n" not in str(error.value)
    return str(error.value).replace(f"{path}", "FILE")


def test_lines_keep_their_numbers_across_blank_ones(tmp_path: Path) -> None:
    path = write(tmp_path, b'\n{"prompt": "a"}\n  \n\t\n{"prompt": "b"}')
    assert read_lines(path) == [(2, {"prompt": "a"}), (5, {"prompt": "b"})]


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert read_lines(path) == [(1, {"prompt": "a"}), (2, {"prompt": "b"})]


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a\u2028b\u0085c"}'.encode())
    assert read_lines(path) == [(1, {"prompt": "a\u2028b\u0085c"})]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{'prompt': 1}", "no JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"prompt": "a"', "no JSON"),
        (b'{"prompt": "a"} {"prompt": "b"}', "no JSON: Extra data at column 17"),
        (b'["prompt"]', "a request must be a JSON object"),
        (b'"prompt"', "a request must be a JSON object"),
        (b'{"prompt": "a\xff"}', "no UTF-8: byte 0xff at column 14"),
        ('{"prompt": "a"}'.encode("utf-16"), "no UTF-8"),
        (b"[" * 100_000, "maximum recursion depth"),
        (b'{"prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}", "limit"),
        (b'{"prompt": "a", "prompt": "b"}', "key 'prompt' stands there twice"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is not a JSON number"),
        (b'{"prompt": "a", "arrival_s": Infinity}', "Infinity is not a JSON number"),
        (b'{"prompt": "a", "arrival_s": -Infinity}', "-Infinity is not a JSON number"),
    ],
)
def test_what_is_no_json_object_is_refused_by_its_line(tmp_path: Path, line: bytes, complaint: str) -> None:
    message = refusal(tmp_path, b'{"prompt": "fine"}\n\n' + line + b'\n{"prompt": "fine"}\n')
    assert message.startswith("FILE, line 3: ")
    assert complaint in message


@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        ('"n_tokens": 3', "unknown key 'n_tokens'"),
        ('"prompt_token_ids": [1]', "exactly one of prompt, prompt_token_ids, messages is needed"),
        ('"messages": []', "exactly one of"),
        ('"n": 0', "n must be a whole number in [1, 128], not 0"),
        ('"n": 10000000', "n must be a whole number in [1, 128], not 10000000"),
        ('"n": 1.0', "n must be"),
        ('"n": null', "n must be"),
        ('"max_tokens": 0', "max_tokens must be a whole number >= 1, not 0"),
        ('"max_tokens": -1', "max_tokens must be"),
        ('"max_tokens": 1.5', "max_tokens must be"),
        ('"max_tokens": "5"', "max_tokens must be"),
        ('"max_tokens": true', "max_tokens must be"),
        ('"temperature": -0.1', "temperature must be"),
        ('"temperature": "0"', "temperature must be"),
        ('"temperature": null', "temperature must be"),
        ('"temperature": false', "temperature must be"),
        ('"temperature": 1e400', "temperature must be"),
        ('"temperature": 1' + "0" * 400, "temperature must be a number in"),
        ('"top_p": 0', "top_p must be"),
        ('"top_p": 1.1', "top_p must be"),
        ('"top_k": -2', "top_k must be"),
        ('"top_k": 1.0', "top_k must be"),
        ('"min_p": 2', "min_p must be"),
        ('"seed": 9223372036854775808', "seed must be"),
        ('"seed": 1.0', "seed must be"),
        ('"seed": true', "seed must be"),
        ('"ignore_eos": 1', "ignore_eos must be true or false"),
        ('"stop_token_ids": 3', "stop_token_ids must be a list"),
        ('"stop_token_ids": "3"', "stop_token_ids must be a list"),
        ('"stop_token_ids": [true]', r"stop_token_ids[0] must be"),
        ('"stop_token_ids": [-1]', r"stop_token_ids[0] must be"),
        ('"priority": "high"', "priority must be"),
        ('"priority": 0.5', "priority must be"),
        ('"priority": null', "priority must be"),
        ('"priority": true', "priority must be"),
        ('"priority": 9223372036854775808', "priority must be"),
        ('"cache_salt": 7', "cache_salt must be text"),
        ('"arrival_s": -1', "arrival_s must be"),
        ('"arrival_s": "soon"', "arrival_s must be"),
        ('"arrival_s": null', "arrival_s must be"),
        ('"arrival_s": true', "arrival_s must be"),
        ('"arrival_s": 1' + "0" * 400, "arrival_s must be a number in"),
    ],
)
def test_a_bad_field_is_refused_by_its_line_and_name(tmp_path: Path, rest: str, complaint: str) -> None:
    message = refusal(tmp_path, b'{"prompt": "a"}\n{"prompt": "a", ' + rest.encode() + b"}")
    assert message.startswith("FILE, line 2: ")
    assert complaint in message


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"max_tokens": 3}', "exactly one of prompt, prompt_token_ids, messages is needed, not none"),
        ('{"prompt": 7}', "prompt must be text"),
        ('{"prompt": null}', "prompt must be text"),
        ('{"prompt": ["a"]}', "prompt must be text"),
        ('{"prompt": "\\ud800"}', "lone surrogate"),
        ('{"prompt_token_ids": "123"}', "must be a list of token ids"),
        ('{"prompt_token_ids": 1}', "must be a list of token ids"),
        ('{"prompt_token_ids": [1, 1.0]}', r"prompt_token_ids[1] must be"),
        ('{"prompt_token_ids": [[1]]}', r"prompt_token_ids[0] must be"),
        ('{"prompt_token_ids": [true]}', r"prompt_token_ids[0] must be"),
        ('{"prompt_token_ids": [-1]}', r"prompt_token_ids[0] must be"),
        ('{"messages": "hi"}', "messages must be a list"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "user"}]}', r"messages[0] must be an object"),
    ],
)
def test_a_bad_source_is_refused_by_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    message = refusal(tmp_path, b"\n" + line.encode())
    assert message.startswith("FILE, line 2: ")
    assert complaint in message


@pytest.mark.parametrize("data", [b"", b"\n\n  \r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path: Path, data: bytes) -> None:
    assert refusal(tmp_path, data) == "FILE has no requests"


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))}: Is a directory$"):
        read_lines(tmp_path)
    with pytest.raises(ValueError, match=r"missing: No such file or directory$"):
        read_lines(tmp_path / "missing")


def test_a_line_sets_its_own_and_takes_the_rest_from_the_defaults() -> None:
    wanted = parse({"prompt_token_ids": [1, 2], "seed": 3, "max_tokens": None, "stop_token_ids": [9]}, DEFAULTS)
    assert wanted.params == SamplingParams(temperature=0, max_tokens=None, seed=3, stop_token_ids=(9,))


def test_a_line_may_want_several_answers() -> None:
    assert parse({"prompt_token_ids": [1, 2], "n": 3}, DEFAULTS).params == SamplingParams(
        n=3, temperature=0, max_tokens=5
    )


def test_a_request_has_its_options() -> None:
    given: dict[str, Any] = {"prompt_token_ids": [1, 2], "priority": -1, "cache_salt": "me", "arrival_s": 2}
    request = parse(given, DEFAULTS).tokenize(None)
    assert request == Request([1, 2], DEFAULTS, priority=-1, cache_salt="me", arrival_s=2.0)


def test_null_means_no_salt() -> None:
    assert parse({"prompt": "a", "cache_salt": None}, DEFAULTS).cache_salt is None


def test_without_a_tokenizer_only_token_ids_are_read() -> None:
    assert parse({"prompt_token_ids": [3]}, DEFAULTS).tokenize(None).prompt_token_ids == [3]
    with pytest.raises(ValueError, match="no tokenizer"):
        parse({"prompt": "w7"}, DEFAULTS).tokenize(None)


def test_nested_keys_may_not_be_given_twice_either() -> None:
    with pytest.raises(ValueError, match="'role' stands there twice"):
        parse_line(b'{"messages": [{"role": "user", "role": "system", "content": "a"}]}')
