"""Six lines are an engine: write the step that turns waiting requests into words.

A sequence has `tokens`, of which the first `num_computed_tokens` are in the KV cache; the others are pending. A step
runs all pending tokens of everybody in the batch in one forward, and everybody gains one token.

    prompt of 3    step 1 runs 3 tokens, says a word       step 2 runs that word, says the next       and so on

1. If the batch is empty, `self.seat()` fills it from the queue.
2. A `Chunk(seq, seq.num_pending)` for everybody in `self.batch` who has not finished.
3. `pack(chunks, self.config.max_model_len)` lays the chunks end to end; `self.model(batch, self.kv_cache)` gives a row
   of logits for each.
4. `self.model.sample(logits, batch.rows)` draws a token from each row; `unpack(batch, ...)` sorts them by chunk.
5. `advance(chunks, tokens, measure(batch, logits, tokens))` moves everybody past what was computed.
6. `self.close(chunks, tokens)` reports what is new: it is what `step` returns.

Before all that, `self.trace.begin()` starts the clock of the step.
"""

from levels.exercises import Part

PARTS = (
    Part(
        "levels/01_basic/engine.py",
        ("Engine.step",),
        ("tests/test_golden_traces.py -k 01_", "tests/test_scheduler.py -k Level01"),
    ),
)
HINTS = {
    "everybody runs what is pending": "A chunk for each unfinished sequence of the batch, of all its pending tokens; "
    "whoever has finished only waits for the others.",
    "a batch is who waited longest": "Seat a new batch when the last one is done, and not before.",
    "is somebody else's": "Keys and values were written for other tokens than those that were read: run every pending "
    "token, from the first on.",
    "one output for whoever has news": "Each sequence gains one token a step; return what `self.close` reports.",
    "one record a step": "Return `self.close(chunks, tokens)`: it writes the step down, too.",
    "everything computed is still there": "`advance` has to be told of the chunks that ran, once a step.",
    "the steps are those on the page": "Look at the first step that differs: who ran how much, who came in, who gave "
    "way? The page says what it is about.",
}
