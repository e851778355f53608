"""A mixture of experts made on the spot: the same every time, transformers reads it too, and some experts are hot."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from levels.texts import PASSAGE
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.models.make_moe import ARCHITECTURES, make_moe
from tests.models.test_decoder import logits_in_chunks
from tests.tiny import greedy_tokens

ROOT = Path(__file__).parent.parent.parent
TEXT = "Wer hat an der Uhr gedreht? \N{FIRE}"


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_it_is_made_twice_the_same_and_transformers_reads_it(kind, tmp_path):
    first, second = (make_moe(tmp_path / name, kind) for name in ("first", "second"))
    files = sorted(path.name for path in first.iterdir())
    assert files == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in files)
    model = load_model(EngineConfig(model=str(first)))
    prompt = AutoTokenizer.from_pretrained(first).encode(TEXT)
    assert prompt == model.vocabulary.tokenizer.encode(TEXT)
    last = logits_in_chunks(model, prompt, [len(prompt)])[-1]
    assert last.argmax().item() == greedy_tokens(first, [prompt], 1)[0][0]


def test_any_text_has_tokens_and_comes_back(tmp_path):
    vocabulary = load_model(EngineConfig(model=str(make_moe(tmp_path)))).vocabulary
    assert vocabulary.tokenizer.decode(vocabulary.tokenizer.encode(TEXT)) == TEXT
    assert vocabulary.eos_token_ids == {257}
    chat = vocabulary.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n"


def test_some_experts_are_asked_much_more_than_others(tmp_path):
    model = load_model(EngineConfig(model=str(make_moe(tmp_path))))
    prompt = model.vocabulary.tokenizer.encode(PASSAGE[:600])
    logits_in_chunks(model, prompt, [len(prompt)])
    for balance in model.model.rebalance():
        assert max(balance.load) > 1.5 * sum(balance.load) / 8
        assert min(balance.load) > 0


def test_what_cannot_be_made_is_one_line(tmp_path):
    command = [sys.executable, "-m", "minipaged.models.make_moe", tmp_path / "m", "--num-experts", "0"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "num_experts must be a whole number >= 1, not 0" in result.stderr
