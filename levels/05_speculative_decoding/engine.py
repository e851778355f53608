"""Guess what comes next, check the guess in one forward, keep what is right.

    tokens   ... the cat sat on the         the text has been here before: "on the mat and then"
    run      the | mat and then             one forward over four tokens instead of one
    said      mat  and so                   two guesses right, one word of the model's own: three for one forward

Level 04 ran one token of every answer at a time, and a forward over one token takes hardly less time than one over a
few: it reads all weights once either way. Here a drafter guesses ahead, cheaply, and the model checks its guesses as
it would read a prompt (speculative decoding, Leviathan et al. 2023). Invariant: the words are those of plain decoding,
or have exactly their distribution; a wrong guess leaves only a slot that will be written again."""

from minipaged.base import EngineBase
from minipaged.batch import advance, pack
from minipaged.config import EngineConfig
from minipaged.desk import FrontDesk
from minipaged.loading import load_model
from minipaged.logprobs import measure
from minipaged.outputs import RequestOutput
from minipaged.prefix import make_block_manager
from minipaged.runner import ModelRunner
from minipaged.scheduler import Scheduler
from minipaged.speculative import make_drafter, speculate
from minipaged.speculative.verify import verify


class Engine(EngineBase):
    """Schedule, speculate, run, verify, advance, retire."""

    def __init__(self, config: EngineConfig, model: ModelRunner | None = None):
        config.check_level(5)
        self.model = model or load_model(config)
        config = self.model.resolve(config)
        desk = FrontDesk(config, self.model.vocabulary)
        super().__init__(desk, Scheduler(config, make_block_manager(config)))
        self.kv_cache = self.model.new_kv_cache(config.num_blocks, config.block_size)
        self.drafter = make_drafter(config, self.model)

    def step(self) -> list[RequestOutput]:
        plan = self.scheduler.schedule()
        guesses = speculate(plan, self.drafter, self.blocks)
        batch = pack(plan.chunks, self.config.block_size)
        logits = self.model(batch, self.kv_cache)
        tokens = verify(batch, logits, guesses, self.model.sample)
        advance(plan.chunks, tokens, measure(batch, logits, tokens))
        self.drafter.length.learn(plan.chunks, tokens)
        return self.retire(plan.chunks, tokens)
