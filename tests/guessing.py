"""A small engine of level 05 or later and a drafter from the whole bestiary, through a life of a dozen events.

guess_storm(level, seed)    arrivals, steps and departures in a tiny pool, and after every step:
    integrity        names, counts and queues, as the engine itself sees them
    what is said     a beginning of what a model without engine, cache or guesses says
    room             nobody holds a block more than plain decoding would: nobody gives way for a guess
    the budget       drafts are in it; no more of them than engine and request allow

The fake model beside it bites whoever reads a slot that a wrong guess has left behind."""

from dataclasses import replace
from random import Random

import pytest

from levels import load
from minipaged.batch import NO_TOKEN

from .drafters import DRAFTERS, Scripted, drafting_with, right
from .fake_model import FakeModel, answers_alone, spoken_text
from .plain import check_scores
from .worlds import NAMES, UNLUCKY, new_model, random_config, random_visit


class OtherModel(FakeModel):
    """Agrees with the fake model mostly: it says 3 wherever that would say 2."""

    def logits(self, tokens):
        row = super().logits(tokens)
        row[3] = max(row[2], row[3])
        return row


def spoken_by(engine):
    """The model behind an engine, which from level 06 on has an executor in between."""
    return getattr(engine.model, "model", engine.model)


def astray(engine, answer_to):
    """Takes a wrong turn first, and then says what the model would say on that way."""

    def guess(seq, limit):
        n = seq.num_prompt_tokens
        prompt, drafts = seq.tokens[:n], [token ^ 1 for token in right(answer_to)(seq, 1)]
        while drafts and len(drafts) < limit:
            word = spoken_by(engine).says(prompt, [*seq.tokens[n:], *drafts], seq.params)
            if word == NO_TOKEN:
                break
            drafts.append(word)
        return tuple(drafts[:limit])

    return Scripted(engine.drafter.length, guess)


BESTIARY = {
    **DRAFTERS,
    "astray": astray,
    "draft model": drafting_with(lambda engine: new_model()),
    "another model": drafting_with(lambda engine: OtherModel(unlucky=UNLUCKY)),
}


class Life:
    """An engine, its drafter, and what everybody should say."""

    def __init__(self, level, rng):
        config = random_config(rng, level)
        self.model, self.rng = new_model(), rng
        self.engine = load(level).Engine(config, self.model)
        self.kind = rng.choice(sorted(BESTIARY))
        self.due, self.wishes, self.params = {}, {}, {}
        self.muddled = set()  # names that were given to somebody else while a batch of theirs was in flight
        self.engine.drafter = BESTIARY[self.kind](
            self.engine, lambda seq: self.due[seq.request_id][seq.choice].token_ids
        )

    def arrive(self, name):
        visit = random_visit(self.rng)
        wish = self.rng.choice([None, None, 0, 1, 2])
        params = replace(visit.params, num_speculative_tokens=wish)
        if "model" in self.kind:
            params = replace(params, temperature=0)  # what is drawn with a draft model has the right distribution only
        try:
            self.engine.add_request(visit.prompt, params, name, priority=visit.priority)
        except ValueError:
            return
        self.params[name] = params
        allowed = self.engine.config.num_speculative_tokens
        self.wishes[name] = params.n * (allowed if wish is None else min(wish, allowed))
        self.due[name] = answers_alone(self.model, visit.prompt, params, self.engine.config.max_model_len)

    def leave(self, name):
        choices = self.engine.desk.live.get(name, [])
        self.muddled |= {name} if any(seq.in_flight for seq in choices) else set()
        self.engine.abort(name)
        self.due.pop(name, None)

    def step(self):
        before = {seq: len(seq.tokens) for choices in self.engine.desk.live.values() for seq in choices}
        num_steps = len(self.engine.trace.steps)
        outputs = self.engine.step()
        self.engine.check_integrity()
        for record in self.engine.trace.steps[num_steps:]:
            self.check_record(record)
        for seq in self.engine.holders:
            if seq.in_flight:  # its drafts are, too
                continue
            spoke = len(seq.tokens) > before.get(seq, len(seq.tokens))
            assert not spoke or seq.num_pending == 1, "all but the newest token is computed"
            guessed = spoke and seq.params.n == 1 and seq.request_id in self.engine.trace.steps[-1].draft_tokens
            bound = self.engine.blocks.num_blocks_for(seq.num_computed_tokens if guessed else len(seq.tokens))
            assert len(seq.block_table) <= bound, "nobody holds a block for the sake of a guess"
        for output in outputs:
            self.hear(output)

    def check_record(self, record):
        ran = sum(record.num_scheduled_tokens.values())
        assert ran <= self.engine.config.max_num_batched_tokens, "drafts are in the budget"
        for name, num_tokens in record.num_scheduled_tokens.items():
            if name in self.muddled:
                continue
            longest = self.engine.config.max_chunk_len * self.params[name].n
            assert num_tokens <= longest, "and in the threshold"
        for name, num_drafts in record.draft_tokens.items():
            if name in self.muddled:
                continue
            assert 0 < num_drafts <= self.wishes[name], "no more drafts than engine and request allow"
            assert 0 <= record.accepted_tokens[name] <= num_drafts
            assert self.kind not in ("perfect", "draft model") or record.accepted_tokens[name] == num_drafts
            assert self.kind != "wrong" or record.accepted_tokens[name] == 0
        assert self.kind != "none" or not record.draft_tokens

    def hear(self, output):
        check_scores(self.model, self.params[output.request_id], output)
        num_slots = self.engine.config.num_blocks * self.engine.config.block_size
        for answer, said in zip(self.due[output.request_id], output.outputs, strict=True):
            n = len(said.token_ids)
            assert tuple(said.token_ids) == answer.token_ids[:n], "what is said is what plain decoding says"
            end = (tuple(said.token_ids), said.finish_reason, said.stop_reason)
            is_full = len(output.prompt_token_ids) + n == num_slots + 1 and said.finish_reason == "length"
            expected = (answer.token_ids, answer.finish_reason, answer.stop_reason)
            assert said.finish_reason is None or is_full or end == expected
            text = spoken_text(answer, n, self.params[output.request_id], said.finish_reason)
            assert said.text == text, "the text is what may be shown of it"
        if output.finished:
            del self.due[output.request_id]

    def something_happens(self):
        event = self.rng.choice(["arrive", "arrive", "step", "step", "step", "leave"])
        if event == "arrive":
            for name in self.rng.sample(NAMES, self.rng.randint(1, 4)):
                self.arrive(name)
        elif event == "leave":
            self.leave(self.rng.choice(NAMES))
        elif self.engine.has_unfinished_requests():
            self.step()

    def drain(self):
        for _ in range(2000):
            if not self.engine.has_unfinished_requests():
                break
            self.step()
        else:
            pytest.fail("nobody comes to an end")
        assert not self.due, "nobody is forgotten"
        assert self.engine.blocks.num_free_blocks == self.engine.config.num_blocks, "all blocks come back"


def guess_storm(level, seed):
    life = Life(level, Random(seed))
    for _ in range(20):
        life.something_happens()
    life.drain()
    return life
