"""Seven assistants, seven visitors each: all visitors of an assistant begin with the same 160 words."""

from dataclasses import replace
from typing import Any

from rich.console import Console

from levels.texts import PASSAGE, QUESTIONS
from minipaged.config import EngineConfig
from minipaged.driver import Request
from minipaged.parallel.load_chart import draw_load

WORDS = PASSAGE.split()
CONFIG = {
    "data_parallel_size": 2,
    "max_model_len": 2048,  # a tokenizer of bytes (models/make_moe.py) needs as many
    "num_blocks": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
}
REQUESTS = [
    {
        "messages": [
            {"role": "system", "content": "You answer questions about this text. " + " ".join(WORDS[i * 40 :][:160])},
            {"role": "user", "content": f"I am visitor {visitor}. {QUESTIONS[visitor]}"},
        ],
        "max_tokens": 8,
        "ignore_eos": True,
    }
    for visitor in range(7)
    for i in range(7)  # an odd number, or taking turns would send each assistant's visitors to one place
]
LOOK_AT = ("output tokens/s", "first token after (mean)", "of them by each replica", "prompt tokens found")


def by_prefix(config: EngineConfig) -> EngineConfig:
    """Each to the replica that has read most of it before."""
    return replace(config, data_parallel_router="prefix")


def explain(engine: Any, requests: list[Request], console: Console) -> None:
    """What the experts of each layer were asked, and where a plan puts them; a model without experts has none."""
    if not engine.balances:
        engine.rebalance()
    for line in draw_load(engine.balances[0]) if engine.balances else ():
        console.print(line, soft_wrap=True)


MORE = (("The same visitors, each sent to the replica that has read most of it before.", REQUESTS, by_prefix),)
