"""The order of measuring, and that nothing measured is ever lost; engines are played, clocks are not looked at."""

import pytest

from benchmarks.bench import Bench, Plan
from benchmarks.document import compare, speedups
from benchmarks.process import Sample
from tests.tiny import tiny_model

LIMITS = {"product_gflop_s": 100.0, "memory_read_gb_s": 10.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("bench"), vocab_size=256)


class Played:
    """An engine that says the first token of each prompt again and again; `log` is everybody's."""

    log: list[tuple[str, int]]

    def __init__(self, name, folder, num_threads):
        self.name, self.load_s, self.settings = name, 0.5, {"threads": num_threads}
        self.closed = False

    def measure(self, requests):
        self.log.append((self.name, len(requests)))
        model_s = 1.5 if self.name.startswith("minipaged") else None
        return Sample([[r.prompt_token_ids[0]] * r.max_tokens for r in requests], 2.0, 0.25, model_s, 100)

    def close(self):
        self.closed = True


def make_bench(folder, start=Played, **changes):
    start.log = []
    options = {"workloads": ("W1", "W2"), "engines": ("transformers:one", "minipaged:3"), "repetitions": 2}
    options |= {"model": "tiny", "scale": 0.125, "subset": 8, "threads": 1, "seed": 0}
    return Bench(Plan(**{**options, **changes}), folder, LIMITS, start)


def test_engines_take_turns_and_warming_up_is_not_counted(folder):
    bench = make_bench(folder)
    bench.run()
    one, ours = "transformers:one", "minipaged:3"
    warm_up = [(one, 1), (one, 8), (ours, 1), (ours, 64)]
    assert Played.log == [*warm_up, *[(one, 1), (ours, 1), (one, 8), (ours, 64)] * 2]
    assert len(bench.records) == 8
    assert all(process.closed for process in bench.processes.values())


def test_how_long_it_takes_follows_from_warming_up_and_then_from_what_was_measured(folder):
    bench = make_bench(folder, repetitions=3)
    said = []
    bench.say = said.append
    bench.run()
    # warming up is half as long: 2 s each, at twice the length, for 4 measurements of 3 repetitions; then 2 s each
    assert [line for line in said if "minutes" in line] == [
        "about 0.8 minutes from here",
        "about 0.3 minutes from here",
        "about 0.1 minutes from here",
    ]


def test_repetitions_may_go_on_where_others_ended(folder):
    bench = make_bench(folder, workloads=("W1",), first=3)
    bench.run()
    assert [record["repetition"] for record in bench.records] == [3, 3, 4, 4]
    assert bench.records[0]["checksum"] not in {record["checksum"] for record in run_plain(folder)}


def run_plain(folder):
    bench = make_bench(folder, workloads=("W1",), repetitions=3)
    bench.run()
    return bench.records


def test_an_engine_of_batches_gets_enough_to_fill_one(folder):
    bench = make_bench(folder, workloads=("W2",), engines=("transformers:static16", "minipaged:3"), part=16)
    bench.run()
    assert [record["num_requests"] for record in bench.records] == [16, 64, 16, 64]


def test_a_record_follows_from_tokens_and_clocks(folder):
    bench = make_bench(folder)
    bench.run()
    w1 = bench.records[1]
    assert (w1["workload"], w1["engine"], w1["repetition"], w1["subset"]) == ("W1", "minipaged:3", 0, None)
    assert (w1["prompt_tokens"], w1["output_tokens"], w1["output_tokens_per_s"]) == (16, 16, 8.0)
    assert w1["decode_tokens_per_s"] == pytest.approx(15 / 1.75)
    assert (w1["ttft_s"], w1["model_s"], w1["own_cost"]) == (0.25, 1.5, 0.25)
    assert w1["agreement"] == {"with": "transformers:one", "num_requests": 1, "equal_requests": 1, "equal_tokens": 1.0}


def test_a_slow_engine_gets_a_part_and_is_compared_on_that_part(folder):
    bench = make_bench(folder, workloads=("W2",), repetitions=1)
    bench.run()
    slow, ours = bench.records
    assert slow["num_requests"] == len(slow["subset"]) == 8
    assert ours["num_requests"] == 64
    assert ours["agreement"]["num_requests"] == ours["agreement"]["equal_requests"] == 8
    assert slow["own_cost"] is slow["decode_tokens_per_s"] is slow["agreement"] is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("minipaged:3 ended with exit code -9")])
def test_whatever_ends_a_run_leaves_what_was_measured(folder, error):
    class Failing(Played):
        def measure(self, requests):
            if len(self.log) == 7:
                raise error
            return super().measure(requests)

    bench = make_bench(folder, Failing)
    if isinstance(error, RuntimeError):
        with pytest.raises(RuntimeError, match="exit code -9"):
            bench.run()
    else:
        bench.run()
    document = bench.document()
    assert document["interrupted"] is isinstance(error, KeyboardInterrupt)
    assert len(document["repetitions"]) == 3
    assert all(process.closed for process in bench.processes.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workloads": ("W5",)}, "--workloads W5"),
        ({"workloads": ()}, "--workloads : at least one"),
        ({"engines": ("minipaged:3", "minipaged:3")}, "none twice"),
        ({"engines": ("minipaged:77",)}, "minipaged:77"),
        ({"repetitions": 0}, "--repetitions"),
        ({"scale": 1.5}, r"--scale.*1.5"),
        ({"threads": -1}, "--threads.*-1"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        make_bench(folder, **changes)


def test_agreement_counts_what_comes_before_the_first_difference():
    found = compare("a", {0: [1, 2, 3, 4], 2: [5, 6]}, {0: [1, 2, 9, 4], 1: [7], 2: [5, 6]})
    assert found == {"with": "a", "num_requests": 2, "equal_requests": 1, "equal_tokens": 4 / 6}


def test_ratios_pair_what_was_measured_side_by_side():
    ours = [{"repetition": 0, "x": 6.0}, {"repetition": 1, "x": 8.0}]
    theirs = [{"repetition": 0, "x": 2.0}, {"repetition": 1, "x": 4.0}, {"repetition": 2, "x": 1.0}]
    assert speedups(ours, theirs, "x", less_is_better=False) == [3.0, 2.0]
    assert speedups(ours, theirs, "x", less_is_better=True) == [1 / 3, 0.5]
