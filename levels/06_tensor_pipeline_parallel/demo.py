"""Eight people are answered by a model that no single rank has room for: each has a part, and batches pass through."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from levels.texts import ask
from minipaged.driver import Request, Run
from minipaged.timeline import busy_share, common_window, draw, middle

if TYPE_CHECKING:
    from minipaged.parallel.messages import Report

TOGETHER = ("tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend")  # all yours, or none
CONFIG = {"max_model_len": 1024, "num_blocks": 256, "rank_memory_gb": 0.45, "pipeline_parallel_size": 2}
REQUESTS = [{"messages": ask(i, 40), "max_tokens": 24, "ignore_eos": True} for i in range(8)]
LOOK_AT = ("output tokens/s", "most requests in one step")
WIDTH, NUM_SHOWN = 64, 6  # cells of a picture, and how many batches it shows


def explain(engine: Any, requests: list[Request], console: Console) -> None:
    """What each rank holds and sends; and, where there are stages, their pipeline with more and more in flight."""
    if engine.config.chosen_backend == "uniproc":
        return
    console.print(refusal(engine), soft_wrap=True)
    num_stages = engine.executor.layout.num_stages
    for num_batches in (1, 2, 4) if num_stages > 1 else (1,):
        num_tokens, reports = watch(engine, requests, num_batches)
        if num_batches == 1:
            console.print(holdings(engine, num_tokens, reports))
        if num_stages > 1:
            draw_pipeline(engine, num_batches, reports, console)


def refusal(engine: Any) -> str:
    """What happens if one rank is to have it all."""
    whole = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "pipeline_layers": None}
    try:
        type(engine)(replace(engine.config, distributed_executor_backend="uniproc", **whole))
    except ValueError as error:
        return f"All of it on one rank: {error}."
    return "All of it on one rank: it fits. (Try a smaller --rank-memory-gb.)"


def watch(engine: Any, requests: list[Request], num_batches: int) -> "tuple[int, list[Report]]":
    """Run them once more, with so many batches in flight: tokens run, and what each rank says of it."""
    engine.reset_prefix_cache()
    engine.scheduler.max_concurrent_batches = num_batches
    before, first = engine.executor.reports(), len(engine.trace.steps)
    Run(engine, requests).go()
    num_tokens = sum(sum(step.num_scheduled_tokens.values()) for step in engine.trace.steps[first:])
    return num_tokens, [after.since(earlier) for after, earlier in zip(engine.executor.reports(), before, strict=True)]


def holdings(engine: Any, num_tokens: int, reports: "list[Report]") -> Table:
    """A row for each rank. What a token costs is told by the formula and by what was counted, in bytes."""
    title = "what each rank holds, and what it sent for a token: counted, and by the formula"
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("rank", "layers", "weights", "keys, values", "added up", "formula", "passed on", "formula"):
        table.add_column(name, justify="right")
    layout, model = engine.executor.layout, engine.executor.target.model_config
    row_bytes = model.hidden_size * BYTES[engine.config.dtype]
    for rank, report in enumerate(reports):
        portion, n = layout.portion(model, rank), layout.tensor_size
        sums = (2 * len(portion.layers) + (rank < n)) * row_bytes * 2 * (n - 1) / n
        passed = row_bytes if rank < layout.answering_rank else 0
        counted = [report.sent_bytes.get(name, 0) / num_tokens for name in ("all_reduce", "send")]
        sizes = (f"{size / 1e6:.0f} MB" for size in (report.weight_bytes, report.kv_bytes))
        layers = f"{portion.layers.start} .. {portion.layers.stop - 1}"
        numbers = (f"{number:,.0f}" for number in (counted[0], sums, counted[1], passed))
        table.add_row(str(rank), layers, *sizes, *numbers)
    return table


def draw_pipeline(engine: Any, num_batches: int, reports: "list[Report]", console: Console) -> None:
    """A line for each stage: its first rank's, for the others of a stage work at the same time."""
    layout = engine.executor.layout
    stages = [[(span.start_s, span.end_s) for span in report.spans] for report in reports[:: layout.tensor_size]]
    window = common_window(stages)
    shown = middle(window, NUM_SHOWN * window.length_s / len(stages[0]))
    console.print(
        f"\n{num_batches} in flight: stages work {busy_share(stages, window):.0%} of the time", soft_wrap=True
    )
    for number, stage in enumerate(stages):
        console.print(f"    stage {number}  |{draw(stage, shown, WIDTH)}|", soft_wrap=True)


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
