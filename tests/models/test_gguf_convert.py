"""What a converted folder must be: the same tensors, the same tokens, and readable by transformers."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from minipaged.models.gguf_convert import convert
from tests.tiny_gguf import CHAT_TEMPLATE, TOKENS, Tensors, tiny_gguf


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    source, folder = tmp_path_factory.mktemp("gguf"), tmp_path_factory.mktemp("folder")
    path, tensors = tiny_gguf(source)
    convert(path, folder, lambda num_bytes: None)
    return folder, tensors


def test_every_tensor_is_bit_for_bit_the_one_the_file_was_made_from(converted: tuple[Path, Tensors]) -> None:
    folder, expected = converted
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)


def test_transformers_reads_the_config(converted: tuple[Path, Tensors]) -> None:
    config = AutoConfig.from_pretrained(converted[0])
    assert (config.model_type, config.num_hidden_layers, config.hidden_size, config.head_dim) == ("llama", 1, 32, 16)
    assert (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size) == (2, 1, 64)
    assert (config.rms_norm_eps, config.max_position_embeddings, config.vocab_size) == (1e-5, 128, len(TOKENS))
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100000.0}
    assert config.tie_word_embeddings
    assert config.eos_token_id == GenerationConfig.from_pretrained(converted[0]).eos_token_id == 2


def test_a_digit_is_always_a_token_of_its_own_and_nothing_is_added(converted: tuple[Path, Tensors]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted[0])
    assert tokenizer.tokenize("ab  12") == ["ab", "ĠĠ", "1", "2"]
    assert tokenizer.decode(tokenizer("ab  12").input_ids) == "ab  12"
    assert tokenizer("<|im_end|>a").input_ids == [2, TOKENS.index("a")]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (2, 0)


def test_the_chat_template_comes_along(converted: tuple[Path, Tensors]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted[0])
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<|im_start|>hi<|im_end|>"
    )


def test_the_weights_can_be_read_by_whoever_may_read_the_config(converted: tuple[Path, Tensors]) -> None:
    modes = {(converted[0] / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1


def test_progress_counts_float32_bytes(tmp_path: Path) -> None:
    path, tensors = tiny_gguf(tmp_path)
    seen: list[int] = []
    convert(path, tmp_path, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == sum(tensor.nbytes for tensor in tensors.values())


def test_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    path, _ = tiny_gguf(tmp_path, pre_tokenizer="tekken")
    with pytest.raises(ValueError, match=r"tiny\.gguf: tokenizer\.ggml\.pre is 'tekken', only 'smollm'"):
        convert(path, tmp_path, lambda num_bytes: None)
