"""Answers under a schema, a pattern, a choice and a grammar, drawn from the default model: how many of them are valid.

    python -m benchmarks.structured [--samples N] [--json FILE]

    50 seeds at temperature 1 for each kind, all in one batch, beside requests that nothing binds; once without guesses,
    once with n-grams, drafts checked against the grammar

Expected: all valid; the same with guesses as without; and the free ones say what they say alone. Nothing is timed. An
answer counts as valid if it ended by itself and fits: jsonschema, re.fullmatch and Python's `in` are the judges."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.machine import describe_commit, describe_machine, describe_versions
from minipaged import LLM, RequestOutput, SamplingParams
from minipaged.config import DEFAULT_MODEL

PROMPT, MAX_TOKENS = "Here is one:", 80
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "size": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
        "born": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["name", "age", "born"],
}
PATTERN = r"\d{3}-[a-z]{2,4}( (north|south))?"
CITIES = ["Paris", "Rome, Italy", "東京 🔥", "São Paulo"]
SUM = 'root ::= number (" + " number){1,3} " = " number\nnumber ::= [1-9] [0-9]{0,2}'
KINDS: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "json": ({"json": SCHEMA}, lambda text: is_instance(text)),
    "regex": ({"regex": PATTERN}, lambda text: bool(re.fullmatch(PATTERN, text))),
    "choice": ({"choice": CITIES}, lambda text: text in CITIES),
    "grammar": (
        {"grammar": SUM},
        lambda text: bool(re.fullmatch(r"[1-9]\d{0,2}( \+ [1-9]\d{0,2}){1,3} = [1-9]\d{0,2}", text)),
    ),
}
FREE = [SamplingParams(temperature=0, max_tokens=24), *(SamplingParams(seed=s, max_tokens=24) for s in range(3))]


def is_instance(text: str) -> bool:
    try:
        return bool(
            jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).is_valid(
                json.loads(text)
            )
        )
    except ValueError:
        return False


def ask(llm: LLM, num_samples: int) -> list[RequestOutput]:
    """num_samples of each kind, then the free ones."""
    asked = [
        SamplingParams(seed=seed, max_tokens=MAX_TOKENS, structured_outputs=structure)
        for structure, _ in KINDS.values()
        for seed in range(num_samples)
    ]
    return llm.generate([PROMPT] * (len(asked) + len(FREE)), [*asked, *FREE])


def judge(outputs: list[RequestOutput], num_samples: int) -> dict[str, dict[str, Any]]:
    found = {}
    for i, (kind, (_, fits)) in enumerate(KINDS.items()):
        said = [output.outputs[0] for output in outputs[i * num_samples : (i + 1) * num_samples]]
        texts = [one.text for one in said if one.finish_reason == "stop" and fits(one.text)]
        found[kind] = {"answers": len(said), "valid": len(texts), "different": len({*texts}), "first": texts[:3]}
    return found


def run(model: str, num_samples: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    said: dict[str, list[list[int]]] = {}
    for way, num_guesses in (("plain", 0), ("n-grams", 3)):
        with LLM(model, num_speculative_tokens=num_guesses, max_model_len=128, num_blocks=2048) as llm:
            outputs = ask(llm, num_samples)
            alone = [llm.generate(PROMPT, params)[0] for params in FREE]
        said[way] = [output.outputs[0].token_ids for output in outputs]
        free = [output.outputs[0].token_ids for output in alone]
        results[way] = judge(outputs, num_samples) | {"free ones unchanged": said[way][-len(FREE) :] == free}
    same = sum(ours == theirs for ours, theirs in zip(*said.values(), strict=True))
    return results | {"same with guesses": {"answers": len(said["plain"]), "same": same}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structured", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=50, help="answers of each kind (default %(default)s)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default %(default)s)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result there too")
    args = parser.parse_args()
    facts = {"machine": describe_machine(), "versions": describe_versions(), **describe_commit()}
    result = facts | {"samples": args.samples, "result": run(args.model, args.samples)}
    text = json.dumps(result, indent=1, ensure_ascii=False)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
