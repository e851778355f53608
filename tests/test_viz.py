"""Pictures show what is in the objects and documents that they are given, with names, numbers and units."""

from itertools import pairwise

import pytest

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib comes with the extra named bench")

from matplotlib.colors import to_rgb  # noqa: E402

from levels import load  # noqa: E402
from minipaged import viz  # noqa: E402
from minipaged.config import EngineConfig  # noqa: E402
from minipaged.driver import Request, Run  # noqa: E402
from minipaged.results import make_document  # noqa: E402
from minipaged.sampling_params import SamplingParams  # noqa: E402
from minipaged.scheduler import Scheduler  # noqa: E402

from .fake_model import FakeModel  # noqa: E402

PROMPTS = ([2, 3, 4, 5, 6], [2, 3, 4, 5, 7, 8], [9])


def engine(level=4, **fields):
    return load(level).Engine(
        EngineConfig(**{"num_blocks": 12, "block_size": 4, "max_model_len": 24} | fields), FakeModel()
    )


def run(level=4, prompts=PROMPTS, **fields):
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    chosen = engine(level, **fields)
    requests = [Request(list(prompt), params) for prompt in prompts]
    return chosen, make_document(Run(chosen, requests, numbered=True).go(), f"0{level}_name")


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_block_map_names_every_block_and_its_holders_and_hatches_what_is_shared():
    chosen = engine()
    for name, prompt in zip("abc", PROMPTS, strict=True):
        chosen.add_request(list(prompt), SamplingParams(temperature=0, max_tokens=4), name)
    chosen.step()
    figure = viz.block_map(chosen.holders, 12, 4)
    assert [text for text in texts(figure) if text.isdecimal()] == [str(block) for block in range(12)]
    assert [text for text in texts(figure) if not text.isdecimal()] == ["a b", "a", "b", "c"]
    filled = [
        patch
        for patch in figure.axes[0].patches
        if patch.get_facecolor()[:3] not in (to_rgb(viz.GROUND), to_rgb(viz.EMPTY))
    ]
    assert [bool(patch.get_hatch()) for patch in filled] == [True, False, False, False]
    assert [round(patch.get_width() / 0.96, 2) for patch in filled] == [1.0, 0.25, 0.5, 0.25]


def test_a_row_of_level_01_is_one_long_block():
    chosen = engine(1)
    chosen.add_request([2, 3, 4], SamplingParams(temperature=0, max_tokens=4), "a")
    chosen.step()
    figure = viz.block_map(chosen.holders, chosen.num_rows, 24, columns=1)
    assert texts(figure) == ["0", "a", "1"]


def test_a_timeline_has_every_share_of_every_step():
    chosen, _ = run(3)
    figure = viz.timeline(chosen.trace.document())
    steps = [step.num_scheduled_tokens for step in chosen.trace.steps]
    assert texts(figure) == [str(n) for step in steps for n in step.values()]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "1", "2"]


def test_a_timeline_shows_who_gave_way_and_which_guesses_were_right():
    tight, _ = run(2, num_blocks=3, max_model_len=12)
    assert "×" in texts(viz.timeline(tight.trace.document()))
    guessing, _ = run(5, prompts=[[2, 3, 2, 3, 2]] * 2, num_speculative_tokens=2, prompt_lookup_min=1)
    drafted = [step for step in guessing.trace.steps if step.draft_tokens]
    shares = [f"{step.accepted_tokens[n]}/{step.draft_tokens[n]}" for step in drafted for n in step.draft_tokens]
    shown = [text.split("\n")[1] for text in texts(viz.timeline(guessing.trace.document())) if "\n" in text]
    assert shares
    assert shown == shares


def test_a_waterfall_is_as_long_as_each_request_took():
    chosen, document = run(3, max_num_seqs=1)
    axes = viz.waterfall(document, chosen.trace.document()).axes[0]
    assert axes.get_xlabel() == "seconds since the start"
    ends = {}
    for patch in axes.patches:
        row = round(patch.get_y() + patch.get_height() / 2)
        ends[row] = max(ends.get(row, 0), patch.get_x() + patch.get_width())
    assert [ends[i] for i in range(3)] == pytest.approx([request["latency_s"] for request in document["requests"]])


def test_who_was_aborted_has_a_shorter_waterfall():
    chosen, document = run(3)
    document["requests"][1] |= {"ttft_s": None, "latency_s": None}
    axes = viz.waterfall(document, chosen.trace.document()).axes[0]
    assert len(axes.patches) == 3 + 1 + 3


def test_waste_is_the_documents():
    (one, first), (two, second) = run(1), run(2)
    figure = viz.waste_over_time({"01": one.trace.steps, "02": two.trace.steps})
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"{name}: {document['metrics']['kv']['waste']:.0%} in vain"
        for name, document in (("01", first), ("02", second))
    ]
    assert {(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes} == {("step", "slots")}


def test_a_roof_bends_where_memory_and_arithmetic_are_equally_slow():
    figure = viz.roofline({"a": viz.Point(1e9, 1e9, 1.0), "b": viz.Point(64e9, 1e9, 2.0)}, flop_s=100e9, bytes_s=10e9)
    roof, a, b = figure.axes[0].lines
    assert roof.get_xdata()[1] == 10
    assert list(roof.get_ydata()[1:]) == [100, 100]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in (a, b)] == [(1, 1), (64, 32)]
    assert "GB/s" in texts(figure)[0]
    assert figure.axes[0].get_ylabel() == "GFLOP/s"


def luminance(color):
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_pictures_bring_their_own_ground_and_neighbours_differ_in_brightness_too():
    chosen, document = run(3)
    for figure in (viz.timeline(chosen.trace.document()), viz.waterfall(document, chosen.trace.document())):
        assert figure.get_facecolor() == (1, 1, 1, 1)
    assert all(abs(luminance(a) - luminance(b)) > 0.04 for a, b in pairwise(viz.COLORS[:4]))
    assert abs(luminance(viz.READS) - luminance(viz.WRITES)) > 0.2


def test_what_is_quoted_is_the_source_as_it_is():
    text = viz.quote(Scheduler.schedule)._repr_markdown_()
    assert text.startswith("`minipaged/scheduler.py`\n\n```python\n    def schedule(self)")
    assert text.endswith("        return plan\n```")


def test_what_was_spent_is_told_beside_each_bar_with_its_floor():
    figure = viz.spent({"products": 3.0, "attention": 1.0}, {"products": 1.5}, "W2")
    assert [text.strip() for text in texts(figure)] == ["3.00 s, 75.0%, 2.0 × its floor", "1.00 s, 25.0%"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["products", "attention"]
    assert sorted(patch.get_width() for patch in figure.axes[0].patches) == [1.0, 1.5, 3.0]
    assert figure.axes[0].get_xlabel() == "seconds"
