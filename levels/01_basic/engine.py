"""Every sequence gets a row as long as it could ever become, and a batch ends when its longest does.

    row 0  [ p p p g . . . . . . . . . . . . ]  max_model_len slots,    step     1 2 3 4 5 6
    row 1  [ p p p p p p g g g g g . . . . . ]  mostly never used       seq 0    3 1 - - - -   done, and waits
    row 2  [ p g g g . . . . . . . . . . . . ]                          seq 1    6 1 1 1 1 1

A step gives the model every token it has not read yet: first the whole prompt, then one token at a time, since the
keys and values of all earlier ones are in the row. Invariant: row r is the r-th sequence's until the whole batch is
done. What this level says, all later ones must say."""

from minipaged.batch import Chunk, advance, pack, unpack
from minipaged.config import EngineConfig
from minipaged.desk import FrontDesk
from minipaged.loading import load_model
from minipaged.logprobs import measure
from minipaged.outputs import RequestOutput
from minipaged.runner import ModelRunner
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from minipaged.trace import Occupancy, StepTrace


class Engine:
    """The whole loop in one place: requests in, batches of rows, tokens out."""

    def __init__(self, config: EngineConfig, model: ModelRunner | None = None):
        config.check_level(1)
        self.model = model or load_model(config)
        self.config = self.model.resolve(config)
        self.num_rows = self.count_rows()
        self.kv_cache = self.model.new_kv_cache(self.num_rows, self.config.max_model_len)
        self.desk = FrontDesk(self.config, self.model.vocabulary.without_grammars())
        self.trace = StepTrace(self.config.max_model_len)
        self.waiting: list[Sequence] = []
        self.batch: list[Sequence] = []  # the r-th holds row r

    def count_rows(self) -> int:
        num_slots, row_len = self.config.num_blocks * self.config.block_size, self.config.max_model_len
        if num_slots < row_len:
            raise ValueError(f"num_blocks x block_size = {num_slots} slots hold no row of max_model_len {row_len}")
        return min(self.config.max_num_seqs, num_slots // row_len)

    def step(self) -> list[RequestOutput]:
        """Run every unfinished sequence of the batch by its pending tokens."""
        self.trace.begin()
        if not self.batch:
            self.seat()
        chunks = [Chunk(seq, seq.num_pending) for seq in self.batch if not seq.finished]
        batch = pack(chunks, self.config.max_model_len)
        logits = self.model(batch, self.kv_cache)
        tokens = unpack(batch, self.model.sample(logits, batch.rows))
        advance(chunks, tokens, measure(batch, logits, tokens))
        return self.close(chunks, tokens)

    def seat(self) -> None:
        """The next batch: whoever waited longest, one row each."""
        self.batch, self.waiting = self.waiting[: self.num_rows], self.waiting[self.num_rows :]
        for row, seq in enumerate(self.batch):
            seq.block_table = [row]  # one block of max_model_len slots
            self.trace.admitted(seq)

    def close(self, chunks: list[Chunk], new_tokens: list[list[int]]) -> list[RequestOutput]:
        """Report what is new; once the longest is done, all rows are free again."""
        self.trace.record(chunks, new_tokens, self.batch, len(self.batch))
        outputs = self.desk.report(self.batch)
        done = bool(self.batch) and all(seq.finished for seq in self.batch)
        self.batch = [] if done else self.batch
        if chunks or done:
            ended = [chunk.seq for chunk in chunks if chunk.seq.finished]
            num_free = self.num_rows - len(self.batch)
            self.trace.finish(ended, Occupancy(len(self.waiting), len(self.batch), num_free, self.num_rows))
        return outputs

    def add_request(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> str:
        """Queue a request and return its id. Raises ValueError or TypeError for what could not even run alone."""
        self.waiting += self.desk.open(prompt_token_ids, params, request_id, priority, cache_salt)
        return self.waiting[-1].request_id

    def abort(self, request_id: str) -> None:
        """In any state, unknown ids too. Its row stays taken until the batch is done: that is this level's problem."""
        for seq in self.desk.close(request_id):
            seq.finish_reason = "abort"
        self.waiting = [seq for seq in self.waiting if not seq.finished]

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.batch)

    @property
    def holders(self) -> list[Sequence]:
        """Whoever holds memory, finished or not."""
        return self.batch

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken invariant's name."""
        rows = [seq.block_table for seq in self.batch]
        assert rows == [[row] for row in range(len(self.batch))], "row r is the r-th sequence's"
        assert len(self.batch) <= self.num_rows, "no more sequences than rows"
        self.desk.check_integrity([*self.waiting, *self.batch])
