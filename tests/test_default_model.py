"""The real model, the way users take: a file of prompts in, a JSON document out, transformers' tokens in it."""

import json

import pytest

from levels import NAMES, load
from levels.lesson import main
from minipaged.config import EngineConfig
from minipaged.models.hub import resolve_model
from minipaged.prompts import parse
from minipaged.sampling_params import SamplingParams
from minipaged.trace import kv_usage

from .fake_model import FakeModel

pytestmark = pytest.mark.default_model
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time there was a small", "1, 2, 3, 5, 8, 13,"]
MAX_TOKENS = 12
MEMORY = {  # flags, by the level from which on they mean something
    "ample": (1, []),
    "preempted": (2, ["--num-blocks", "12", "--block-size", "4"]),
    "chunked": (3, ["--max-num-batched-tokens", "3"]),
}


@pytest.fixture(scope="module")
def expected():
    """transformers' greedy tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model("smollm2-135m")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    answers = []
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)
        answers.append(out[0, inputs["input_ids"].shape[1] :].tolist())
    return answers


LEVELS = range(1, len(NAMES) + 1)
IN_BETWEEN = (6, 7)  # one engine in one process, as 08 is here: its memory is 08's
CASES = [
    (level, memory)
    for memory, (since, _) in MEMORY.items()
    for level in LEVELS[since - 1 :]
    if memory == "ample" or level not in IN_BETWEEN
]


@pytest.mark.parametrize(("level", "memory"), CASES)
def test_every_level_gives_the_tokens_of_transformers(level, memory, expected, tmp_path):
    prompts, document = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text("".join(json.dumps({"prompt": p, "max_tokens": MAX_TOKENS}) + "\n" for p in PROMPTS))
    argv = ["--prompts", str(prompts), "--json", str(document), "--max-model-len", "64", *MEMORY[memory][1]]
    assert main(level, argv) == 0
    result = json.loads(document.read_text())
    assert [request["token_ids"] for request in result["requests"]] == expected
    assert memory != "preempted" or result["metrics"]["preemptions"] > 0


@pytest.mark.parametrize(("level", "least", "most"), [(1, 0.60, 1.0), (2, 0.0, 0.04)])
def test_the_demonstrations_waste_what_their_lessons_say(level, least, most):
    """On the real prompts; who writes the tokens does not matter to the memory."""
    from transformers import AutoTokenizer

    demo, tokenizer = load(level, "demo"), AutoTokenizer.from_pretrained(resolve_model("smollm2-135m"))
    model = FakeModel(vocab_size=len(tokenizer), eos_token_ids=frozenset())
    engine = load(level).Engine(EngineConfig(**demo.CONFIG), model)
    for wanted in demo.REQUESTS:
        request = parse(wanted, SamplingParams(temperature=0)).tokenize(tokenizer)
        engine.add_request(request.prompt_token_ids, request.params)
    while engine.has_unfinished_requests():
        engine.step()
    assert least <= kv_usage(engine.trace.steps)["waste"] <= most
