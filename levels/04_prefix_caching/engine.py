"""What was computed once is shared by name. The policy is final: minipaged/scheduler.py.

    first user    [ system prompt | question 1 ]     computes and publishes every full block
    second user   [ system prompt | question 2 ]     adopts the system prompt's blocks 4, 7; computes the question

Level 03 read everybody's prompt from the first word to the last. Here a block is named by its content and by all that
stands before it; whoever begins with the same words borrows the blocks (automatic prefix caching as in vLLM; SGLang's
RadixAttention, Zheng et al. 2024, section 3, does it with a tree). Invariant: a hit changes when a token is computed,
never which token follows."""

from minipaged.base import EngineBase
from minipaged.batch import advance, pack, unpack
from minipaged.config import EngineConfig
from minipaged.desk import FrontDesk
from minipaged.loading import load_model
from minipaged.logprobs import measure
from minipaged.outputs import RequestOutput
from minipaged.prefix import make_block_manager
from minipaged.runner import ModelRunner
from minipaged.scheduler import Scheduler


class Engine(EngineBase):
    """Schedule, run, sample, advance, retire."""

    def __init__(self, config: EngineConfig, model: ModelRunner | None = None):
        config.check_level(4)
        self.model = model or load_model(config)
        config = self.model.resolve(config)
        desk = FrontDesk(config, self.model.vocabulary)
        super().__init__(desk, Scheduler(config, make_block_manager(config)))
        self.kv_cache = self.model.new_kv_cache(config.num_blocks, config.block_size)

    def step(self) -> list[RequestOutput]:
        plan = self.scheduler.schedule()
        batch = pack(plan.chunks, self.config.block_size)
        logits = self.model(batch, self.kv_cache)
        tokens = unpack(batch, self.model.sample(logits, batch.rows))
        advance(plan.chunks, tokens, measure(batch, logits, tokens))
        return self.retire(plan.chunks, tokens)
