"""An engine and the ledger beside it, told the same events; after every step the ledger has its say.

pair.add / abort / step / drain      what anybody may do with an engine, in any order
storm(level, seed)                   a whole life from one number: a small world and a dozen events
"""

from random import Random

import pytest

from levels import load
from minipaged.config import EngineConfig

from .fake_model import answers_alone
from .plain import check_scores
from .policies import LEDGERS
from .worlds import NAMES, Visit, new_model, random_config, random_visit


class Pair:
    """Every method is one event; a broken promise raises AssertionError with the sentence it broke."""

    def __init__(self, level: int, config: EngineConfig):
        self.level, self.model = level, new_model()
        self.engine = load(level).Engine(config, self.model)
        self.ledger = LEDGERS[level](self.engine.config)

    def add(self, name: str, visit: Visit) -> None:
        request = (visit.prompt, visit.params, name, visit.priority)
        if self.ledger.refuses(name, visit):
            with pytest.raises(ValueError):
                self.engine.add_request(*request)
        else:
            assert self.engine.add_request(*request) == name
            answers = answers_alone(self.model, visit.prompt, visit.params, self.engine.config.max_model_len)
            self.ledger.add(name, visit, answers)

    def abort(self, name: str) -> None:
        self.engine.abort(name)
        self.ledger.abort(name)

    def step(self) -> None:
        num_records, is_busy = len(self.engine.trace.steps), self.engine.has_unfinished_requests()
        outputs = self.engine.step()
        new = self.engine.trace.steps[num_records:]
        assert len(new) == is_busy, "one record a step, none for a step with nothing to do"
        for record in new:
            self.ledger.step(record, outputs)
        for output in outputs:
            check_scores(self.model, self.ledger.choices[output.request_id][0].visit.params, output)
        self.check()

    def check(self) -> None:
        """Between events, engine and ledger agree on who lives and where their tokens are."""
        self.engine.check_integrity()
        assert set(self.engine.desk.live) == set(self.ledger.live), "whoever lives is known to both"
        is_busy = bool(self.ledger.waiting or self.ledger.running)
        assert self.engine.has_unfinished_requests() == is_busy, "an engine knows whether there is work"
        computed = {(seq.request_id, seq.arrival, seq.choice): seq.num_computed_tokens for seq in self.engine.holders}
        due = {(known.name, known.arrival, known.choice): known.num_computed for known in self.ledger.running}
        assert computed == due, "everything computed is still there"
        if self.level > 1:
            blocks = {(seq.request_id, seq.choice): len(seq.block_table) for seq in self.engine.holders}
            due = {(known.name, known.choice): known.num_blocks for known in self.ledger.running}
            assert blocks == due, "everybody holds the blocks they need, no more and no fewer"

    def drain(self) -> None:
        """Run to the end, which must come, and leave nothing behind."""
        while self.engine.has_unfinished_requests():
            self.step()
        assert not self.ledger.live, "nobody is forgotten"
        assert self.engine.step() == [], "with nothing to do nothing happens"
        if self.level > 1:
            assert self.engine.blocks.num_free_blocks == self.engine.config.num_blocks, "all blocks come back"


def random_event(pair: Pair, rng: Random) -> str:
    """Somebody comes, time passes, or somebody goes. Returns what happened, as a line to read."""
    kind = rng.choice(["arrive", "arrive", "step", "step", "step", "abort"])
    if kind == "arrive":
        crowd = {name: random_visit(rng) for name in rng.sample(NAMES, rng.randint(1, 4))}
        for name, visit in crowd.items():
            pair.add(name, visit)
        return f"arrive {crowd}"
    if kind == "abort":
        pair.abort(name := rng.choice([*NAMES, "nobody"]))
        return f"abort {name}"
    for _ in range(num_steps := rng.choice([1, 1, 2, 3, 6])):
        pair.step()
    return f"step {num_steps}"


def storm(level: int, seed: int) -> Pair:
    rng = Random(seed)
    pair = Pair(level, random_config(rng, level))
    for _ in range(15):
        random_event(pair, rng)
    pair.drain()
    return pair
