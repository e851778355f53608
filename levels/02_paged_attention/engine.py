"""Memory in blocks, as it is needed: more sequences fit, though a batch still runs to its end.

    pool          [ A0 | B0 | A1 | .. | B1 | C0 | .. | .. ]     block_size slots each
    block_table A [ 0, 2 ]       B [ 1, 4 ]       C [ 5 ]       only last blocks are partly empty
    full?         the newest gives its blocks back and returns to the head of the queue: preemption by recompute

Level 01 reserved max_model_len slots for everybody. Here a batch is admitted by the blocks its prompts need today, and
grows block by block. Invariant: everybody in a batch holds exactly the blocks its tokens need; nobody gives way to a
newer one."""

from minipaged.base import EngineBase, SchedulerBase
from minipaged.batch import Plan, advance, pack, unpack
from minipaged.blocks import BlockManager
from minipaged.config import EngineConfig
from minipaged.desk import FrontDesk
from minipaged.loading import load_model
from minipaged.logprobs import measure
from minipaged.outputs import RequestOutput
from minipaged.runner import ModelRunner


class Scheduler(SchedulerBase):
    """First come, first served, a batch at a time: a new one is formed when nobody of the last is left."""

    def schedule(self) -> Plan:
        plan = self.begin()
        if not self.running:
            while (head := self.head()) and self.blocks.reserve(head, head.num_pending):
                self.admit()
        for seq in self.running:
            if self.make_room(seq, plan):
                plan.add(seq)
        return plan


class Engine(EngineBase):
    """Schedule, run, sample, advance, retire."""

    def __init__(self, config: EngineConfig, model: ModelRunner | None = None):
        config.check_level(2)
        self.model = model or load_model(config)
        config = self.model.resolve(config)
        desk = FrontDesk(config, self.model.vocabulary.without_grammars())
        super().__init__(desk, Scheduler(config, BlockManager(config.num_blocks, config.block_size)))
        self.kv_cache = self.model.new_kv_cache(config.num_blocks, config.block_size)

    def step(self) -> list[RequestOutput]:
        plan = self.scheduler.schedule()
        batch = pack(plan.chunks, self.config.block_size)
        logits = self.model(batch, self.kv_cache)
        tokens = unpack(batch, self.model.sample(logits, batch.rows))
        advance(plan.chunks, tokens, measure(batch, logits, tokens))
        return self.retire(plan.chunks, tokens)
