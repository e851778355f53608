"""Every step decides anew who runs: whoever ends makes room at once, and long prompts come in chunks.

    seq 0    3 1 1                    ends at step 3
    seq 1    5 1 1 1 1 1 1 1
    seq 2    . . . 4 1 1 1 1          arrives at step 4, and starts at once
    seq 3    . . . 5 8 7 1 1          arrives with it: a prompt of 20, out of what the budget of 10 leaves

Level 02 formed a batch and waited for its longest. Here the batch is formed again every step (iteration-level
scheduling, Orca, Yu et al. 2022, section 3.1), out of one budget of tokens (chunked prefill, Sarathi, Agrawal et al.
2023). Invariant: running before waiting; the budget is never exceeded; the head of the queue is never overtaken;
nothing is admitted in a step in which somebody found no room."""

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
    """Running sequences first, then the head of the queue, out of one budget of tokens."""

    def schedule(self) -> Plan:
        plan = self.begin(self.config.max_num_batched_tokens, self.config.max_chunk_len)
        for seq in self.running:
            if self.make_room(seq, plan):
                plan.add(seq)
        while plan.is_open and (head := self.head()) and self.blocks.reserve(head, head.num_pending):
            plan.add(self.admit())
        return plan


class Engine(EngineBase):
    """Schedule, run, sample, advance, retire."""

    def __init__(self, config: EngineConfig, model: ModelRunner | None = None):
        config.check_level(3)
        self.model = model or load_model(config)
        config = self.model.resolve(config)
        desk = FrontDesk(config, self.model.vocabulary)
        super().__init__(desk, Scheduler(config, BlockManager(config.num_blocks, config.block_size)))
        self.kv_cache = self.model.new_kv_cache(config.num_blocks, config.block_size)

    def step(self) -> list[RequestOutput]:
        plan = self.scheduler.schedule()
        batch = pack(plan.chunks, self.config.block_size)
        logits = self.model(batch, self.kv_cache)
        tokens = unpack(batch, self.model.sample(logits, batch.rows))
        advance(plan.chunks, tokens, measure(batch, logits, tokens))
        return self.retire(plan.chunks, tokens)
