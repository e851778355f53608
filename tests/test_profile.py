"""A profile adds up to the run, changes nothing that is said, and is nowhere unless somebody asked for it."""

import io

import pytest
from rich.console import Console

from levels import load
from levels.lesson import main
from minipaged import EngineConfig, SamplingParams
from minipaged.driver import Request, Run
from minipaged.loading import load_model
from minipaged.profile import (
    ATTENTION,
    GUESSING,
    IN_FORWARD,
    PACKING,
    PRODUCTS,
    REPORTS,
    REST,
    SAMPLING,
    SCHEDULING,
    SMALL,
    WAITING,
    DeviceStopwatch,
    Profile,
    Stopwatch,
)
from minipaged.profile_table import watch_time

from .tiny import tiny_model

NUM_LAYERS = 2
PROMPTS = ([1, 2, 3, 4, 5], [6, 7], [8])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("profile"), num_hidden_layers=NUM_LAYERS)


def make_engine(folder, level, **options):
    return load(level).Engine(EngineConfig(model=str(folder), max_model_len=64, num_blocks=64, **options))


def run(engine):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    done = Run(engine, [Request(list(prompt), params) for prompt in PROMPTS]).go()
    return done, [record.output.outputs[0].token_ids for record in done.records]


@pytest.mark.parametrize("level", range(1, 9))
def test_lines_add_up_to_the_run_and_nothing_else_is_said(folder, level):
    _, expected = run(make_engine(folder, level))
    engine = make_engine(folder, level)
    profile = Profile(engine)
    done, said = run(engine)
    assert said == expected
    lines = profile.lines(done.wall_s)
    assert sum(line.seconds for line in lines) == pytest.approx(done.wall_s)
    assert all(line.seconds >= 0 for line in lines), lines
    names = [ATTENTION, PRODUCTS, SMALL, IN_FORWARD, SAMPLING, PACKING, REPORTS, REST]
    names += [SCHEDULING] * (level > 1) + [GUESSING] * (level > 4)
    assert {line.name for line in lines} == set(names)
    assert sum(line.share for line in lines) == pytest.approx(1)


def test_every_operation_of_a_forward_has_its_laps(folder):
    engine = make_engine(folder, 3)
    profile = Profile(engine)
    done, _ = run(engine)
    # two norms, two turns of the pairs, attention, gate, and four products a layer; the last norm, and the head
    in_forward = NUM_LAYERS * (2 + 2 + 1 + 1 + 4) + 2
    beside = 3  # the schedule, the draw, the report
    assert profile.watch.num_laps == done.num_steps * (in_forward + beside)


def test_guesses_and_ranks_have_lines_of_their_own(folder):
    options = {"num_speculative_tokens": 2, "speculative_method": "draft_model", "draft_model": str(folder)}
    engine = make_engine(folder, 5, **options)
    profile = Profile(engine)
    done, _ = run(engine)
    spent = {line.name: line.seconds for line in profile.lines(done.wall_s)}
    assert spent[GUESSING] > spent[PACKING] > 0
    with_ranks = make_engine(folder, 6, tensor_parallel_size=2)
    try:
        profile = Profile(with_ranks)
        done, _ = run(with_ranks)
    finally:
        with_ranks.shutdown()
    spent = {line.name: line.seconds for line in profile.lines(done.wall_s)}
    assert spent[WAITING] > 0
    assert ATTENTION not in spent


def test_without_a_profile_nothing_is_in_anybodys_place(folder):
    model = load_model(EngineConfig(model=str(folder)))
    engine = load(4).Engine(EngineConfig(model=str(folder)), model)
    watch_time(engine, wished=False)
    linear = model.model.layers[0].mlp.down_proj.linear
    assert linear.product.__name__ != "lap"
    assert "schedule" not in vars(engine.scheduler)
    watch_time(engine, wished=True)
    assert linear.product.__name__ == "lap"
    assert "schedule" in vars(engine.scheduler)


def test_a_lap_costs_a_microsecond_or_so_and_is_told(folder):
    engine = make_engine(folder, 3)
    profile = Profile(engine)
    run(engine)
    assert 0 <= profile.watch.lap_s() < 20e-6
    assert profile.cost_s == pytest.approx(profile.watch.num_laps * profile.watch.lap_s(), rel=5, abs=1e-3)


class Event:
    """Of a device that takes a second for everything."""

    now = 0.0

    def record(self):
        Event.now += 1.0
        self.at = Event.now

    def synchronize(self):
        self.known = True

    def elapsed_time(self, other):
        assert other.known, "read before it happened"
        return 1e3 * (other.at - self.at)


def test_a_devices_laps_are_read_from_its_events_when_all_is_over():
    watch = DeviceStopwatch(Event)
    work = watch.timed(ATTENTION, lambda x: x + 1)
    assert [work(1), work(2)] == [2, 3]
    assert watch.num_laps == 2
    assert watch.spent == {}
    assert watch.read() == {ATTENTION: 2.0}
    assert watch.read() == {ATTENTION: 2.0}, "and counts once"
    assert isinstance(watch.another(), DeviceStopwatch)
    assert type(Stopwatch().another()) is Stopwatch


def test_every_level_shows_a_table_when_asked(folder, capsys):
    flags = ["--model", str(folder), "--prompts", "-", "--max-tokens", "3"]
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt_token_ids": [1, 2, 3]}\n')
    flags[3] = str(prompts)
    assert main(2, [*flags, "--profile"]) == 0
    shown = capsys.readouterr().out
    assert "where the time went" in shown
    for words in (ATTENTION, PRODUCTS, SMALL, SCHEDULING, "ms a step", "the stopwatches themselves took"):
        assert words in shown, words
    assert main(2, [*flags, "--profile", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("{"), "nothing but the document"
    assert "where the time went" in said.err
    assert main(2, flags) == 0
    assert "where the time went" not in capsys.readouterr().out


def test_a_server_has_no_end_to_show_it_at(folder, capsys):
    assert main(8, ["--model", str(folder), "--profile"]) == 2
    assert "--profile is of a run" in capsys.readouterr().err


def test_a_table_without_steps_is_a_table(folder):
    engine = make_engine(folder, 3)
    show = watch_time(engine, wished=True)
    text = io.StringIO()

    class Nothing:
        document = {"metrics": {"wall_s": 0.0, "steps": 0}}  # noqa: RUF012

    show(Nothing(), Console(file=text))
    assert "all 0 steps" in text.getvalue()
