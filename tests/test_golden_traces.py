"""A policy is a page to read: requests, and the steps they cause, one line each; a changed decision is a changed line.

    tests/traces/NN_name.txt    what it shows; the engine and its requests; the steps
    a:34    a+16                a ran 34 tokens; a was admitted and found 16; whoever finished says why
    a:4(2 of 3)                 of the four that a ran three were guesses, and two of these were right
    a:34    a a+16              with n=2, both choices: they ran 34 and found 16 together

`python -m tests.test_golden_traces` writes the steps of every file anew: read the difference before you commit it."""

from pathlib import Path
from typing import NamedTuple

import pytest

from levels import load
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams

from .fake_model import FakeModel
from .flights import let_fly

FILES = sorted(Path(__file__).parent.glob("traces/*.txt"))
HEADING = ["step", "ran", "admitted", "preempted", "finished", "waiting", "running", "free"]


class Scene(NamedTuple):
    """A file's three paragraphs."""

    shows: str
    setting: str
    steps: str


def read(path):
    return Scene(*path.read_text().split("\n\n"))


def parse(line):
    """ "a  prompt=3 max_tokens=2" -> ("a", {"prompt": 3, "max_tokens": 2})"""
    name, *fields = line.split()
    pairs = (field.split("=") for field in fields)
    return name, {key: int(value) if value.isdecimal() else value for key, value in pairs}


def play(scene):
    """Run the setting; returns the paragraph of its steps."""
    (_, fields), *requests = map(parse, scene.setting.splitlines())
    level, num_batches = fields.pop("level"), fields.pop("in_flight", 1)
    engine = load(level).Engine(EngineConfig(**fields), FakeModel())
    engine = let_fly(engine, num_batches) if num_batches > 1 else engine
    lines, rows, now = [], [], 0
    while now <= max(r.get("arrives", 0) for _, r in requests) or engine.has_unfinished_requests():
        for name, request in requests:
            if request.get("arrives", 0) == now and (refusal := add(engine, name, request)):
                lines.append(f"{name} is refused: {refusal}")
            if request.get("leaves") == now:
                engine.abort(name)
        outputs = engine.step()
        engine.check_integrity()
        rows += [describe(step, outputs) for step in engine.trace.steps[len(rows) :]]
        now += 1
    return "\n".join(lines + table([HEADING, *rows])) + "\n"


def add(engine, name, request):
    """Returns the reason of a refusal."""
    own = [2 + (ord(name[0]) + i) % 9 for i in range(request["prompt"])]  # nobody's is anybody else's
    num_shared = request.get("shared", 0)
    prompt = [11 + i % 4 for i in range(num_shared)] + own[num_shared:]
    length, n = request["max_tokens"], request.get("n", 1)
    params = SamplingParams(n=n, temperature=0, max_tokens=length, ignore_eos=True)
    try:
        engine.add_request(prompt, params, name, priority=request.get("priority", 0))
    except ValueError as error:
        return error
    return None


def describe(step, outputs):
    reasons = {output.request_id: output.outputs[0].finish_reason for output in outputs if output.finished}
    return [
        str(step.step) if step.replica is None else f"{step.step} on {step.replica}",
        " ".join(f"{name}:{n}{guessed(step, name)}" for name, n in step.num_scheduled_tokens.items()) or "-",
        " ".join(admission(step, name) for name in dict.fromkeys(step.admitted)) or "-",
        " ".join(step.preempted) or "-",
        " ".join(f"{name}:{reasons[name]}" if name in reasons else name for name in step.finished) or "-",
        str(step.num_waiting),
        str(step.num_running),
        f"{step.num_free_blocks} of {step.num_blocks}",
    ]


def guessed(step, name):
    return f"({step.accepted_tokens[name]} of {step.draft_tokens[name]})" if name in step.draft_tokens else ""


def admission(step, name):
    found = step.cached_tokens[name]
    return " ".join([name] * step.admitted.count(name)) + (f"+{found}" if found else "")


def table(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_steps_are_those_on_the_page(path):
    scene = read(path)
    assert play(scene).splitlines() == scene.steps.splitlines()


def test_every_level_has_its_pages_and_every_page_says_what_it_shows():
    assert {path.stem[:2] for path in FILES} == {"01", "02", "03", "04", "05", "06", "07"}
    for path in FILES:
        scene = read(path)
        assert scene.shows.endswith((".", ".)")), path.name
        assert int(path.stem[:2]) == parse(scene.setting.splitlines()[0])[1]["level"], path.name


def write_all():
    for path in FILES:
        scene = Scene(*[*path.read_text().strip().split("\n\n"), ""][:3])
        path.write_text("\n\n".join(scene._replace(steps=play(scene))))


if __name__ == "__main__":
    write_all()
