"""Text becomes what the model's own tokenizer and template make of it, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from minipaged.text import encode, encode_chat

from .tiny_tokenizer import CHAT, tiny_tokenizer

HI = [{"role": "user", "content": "w7"}]
PARTS = [{"type": "text", "text": "w7"}, {"type": "text", "text": "w9"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def test_text_is_encoded_as_transformers_does(tokenizer: Any) -> None:
    assert encode(tokenizer, "w7 w9 something") == [7, 9, 0] == tokenizer("w7 w9 something")["input_ids"]


def test_a_conversation_is_encoded_by_the_template_with_the_header_of_the_answer(tokenizer: Any) -> None:
    expected = tokenizer.apply_chat_template(HI, tokenize=True, add_generation_prompt=True)["input_ids"]
    assert encode_chat(tokenizer, HI) == [1, 3, 7, 2, 1, 4] == expected


def test_parts_of_a_message_are_one_text(tokenizer: Any) -> None:
    whole = encode_chat(tokenizer, [{"role": "user", "content": "w7\nw9"}])
    assert encode_chat(tokenizer, [{"role": "user", "content": PARTS}]) == whole
    assert encode_chat(tokenizer, [{"role": "user", "content": PARTS[:1]}]) == encode_chat(tokenizer, HI)


def test_a_developer_is_the_system(tokenizer: Any) -> None:
    asked = [[{"role": role, "content": "w7"}, *HI] for role in ("developer", "system")]
    assert encode_chat(tokenizer, asked[0]) == encode_chat(tokenizer, asked[1])


def test_a_template_that_writes_the_first_token_gets_no_second_one(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path, bos=True))
    assert encode(tokenizer, "w7") == [1, 7]  # plain text gets it from the tokenizer
    assert encode_chat(tokenizer, HI) == [1, 3, 7, 2, 1, 4]  # the template has it already


def test_a_text_longer_than_the_tokenizer_likes_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path, model_max_length=4))
    assert encode(tokenizer, "w7 w7 w7 w7 w7 w7") == [7] * 6
    assert not caplog.records


def test_without_a_tokenizer_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokenizer: give prompt_token_ids"):
        encode(None, "w7")
    with pytest.raises(ValueError, match="no chat template"):
        encode_chat(None, HI)


def test_without_a_template_a_conversation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no chat template"):
        encode_chat(AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path, chat=None)), HI)


def test_what_a_template_raises_is_about_the_messages(tmp_path: Path) -> None:
    picky = CHAT + "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="refuses these messages: roles must alternate"):
        encode_chat(AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path, chat=picky)), HI)


def test_a_lone_surrogate_is_no_text(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="lone surrogate at character 3"):
        encode(tokenizer, "w7 \ud800")
    with pytest.raises(ValueError, match=r"messages\[0\].content is not Unicode"):
        encode_chat(tokenizer, [{"role": "user", "content": "\udcff"}])


@pytest.mark.parametrize("text", [None, 7, b"w7", ["w7"]])
def test_what_is_no_text_is_a_type_error(tokenizer: Any, text: Any) -> None:
    with pytest.raises(TypeError, match="prompt must be text"):
        encode(tokenizer, text)


@pytest.mark.parametrize("messages", [None, "hi", {"role": "user", "content": "hi"}])
def test_messages_that_are_no_list_are_a_type_error(tokenizer: Any, messages: Any) -> None:
    with pytest.raises(TypeError, match="messages must be a list"):
        encode_chat(tokenizer, messages)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "at least one"),
        (["hi"], r"messages\[0\] must be an object"),
        ([*HI, {"role": "user"}], r"messages\[1\] must be an object"),
        ([{"content": "hi"}], r"messages\[0\] must be an object"),
        ([{"role": 1, "content": "hi"}], r"messages\[0\].role must be text"),
        ([{"role": "user", "content": None}], r"messages\[0\].content must be text"),
        ([{"role": "user", "content": ["hi"]}], r"messages\[0\].content\[0\] must be like"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\] must be like"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], r"messages\[0\].content\[0\] must be like"),
        ([{"role": "user", "content": [*PARTS, {"type": "image_url"}]}], r"content\[2\] is 'image_url': this model"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "'input_audio': this model reads text only"),
        ([{"role": "tool", "content": "3"}], r"messages\[0\] is about tool calls"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], r"messages\[0\] is about tool calls"),
    ],
)
def test_malformed_messages_are_refused_by_number(tokenizer: Any, messages: Any, complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        encode_chat(tokenizer, messages)
