"""What ours has to reach beside the others, as ratios within one repetition; a first goal, and one after that.

    Target("W2", "output_tokens_per_s", "float32", "vllm:float32", (1.0, 1.1))

"float32" is our engine as it is, "int8" our engine with weights of 8 bits. The other side is what people would run
instead. Goals are of the medians of a run's ratios; the table shows their range, too."""

from typing import NamedTuple

from benchmarks.document import Record, middle, select, speedups
from benchmarks.workloads import WORKLOADS

from . import is_ours, split_name


class Target(NamedTuple):
    workload: str
    key: str
    ours: str
    theirs: str
    goals: tuple[float, ...]


class Outcome(NamedTuple):
    """A target and what was measured: the ratios of all repetitions in which both sides were."""

    target: Target
    engine: str
    ratios: list[float]

    @property
    def median(self) -> float:
        return middle(self.ratios) or 0.0


OUTPUT, PROMPT, DECODE = "output_tokens_per_s", "prompt_tokens_per_s", "decode_tokens_per_s"
TARGETS = (
    Target("W2", OUTPUT, "float32", "vllm:float32", (1.0, 1.1)),
    Target("W2", OUTPUT, "int8", "vllm:float32", (1.4, 1.8)),
    Target("W2", OUTPUT, "float32", "openvino:float32", (0.75, 1.0)),
    Target("W2", OUTPUT, "int8", "openvino:float32", (1.0, 1.25)),
    Target("W2", OUTPUT, "float32", "transformers:one", (11.0,)),
    Target("W2", OUTPUT, "int8", "transformers:one", (24.0,)),
    Target("W2", OUTPUT, "float32", "transformers:static16", (4.0,)),
    Target("W2", OUTPUT, "int8", "transformers:static16", (7.0,)),
    Target("W1", DECODE, "float32", "llamacpp:f32-1", (1.0,)),
    Target("W1", DECODE, "float32", "vllm:float32", (1.3,)),
    Target("W1", DECODE, "int8", "llamacpp:q8_0-1", (1.0,)),
    Target("W1", DECODE, "int8", "llamacpp:q4_1-1", (1.0,)),
    Target("W3", OUTPUT, "float32", "vllm:float32", (1.2,)),
    Target("W3", OUTPUT, "int8", "vllm:float32", (1.5,)),
    Target("W4", PROMPT, "float32", "vllm:float32", (1.1,)),
    Target("W4", PROMPT, "float32", "openvino:float32", (1.0,)),
    Target("W4", PROMPT, "int8", "vllm:float32", (1.3,)),
    Target("W4", PROMPT, "int8", "openvino:float32", (1.3,)),
)
OWN_COST = {"float32": 0.05, "int8": 0.08}  # of W2's wall time, outside the model's forward


def precision_of(engine: str) -> str:
    """Of one of ours: "float32", or what follows the level in its name."""
    return split_name(engine)[1].partition("-")[2] or "float32"


def find_outcomes(document: Record) -> list[Outcome]:
    """Every target of which both sides were measured side by side, for each of our engines."""
    outcomes = []
    for target in TARGETS:
        for engine in filter(is_ours, document["engines"]):
            if precision_of(engine) == target.ours and (ratios := find_ratios(document, target, engine)):
                outcomes.append(Outcome(target, engine, ratios))
    return outcomes


def find_ratios(document: Record, target: Target, engine: str) -> list[float]:
    both = [select(document, target.workload, name) for name in (engine, target.theirs)]
    figure = {figure.key: figure for figure in WORKLOADS[target.workload].figures}[target.key]
    return speedups(both[0], both[1], target.key, less_is_better=figure.less_is_better)
