"""Whatever the order of events: names tell the truth, each can be reached, and everybody reads their own text."""

from random import Random
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from levels import load
from minipaged.blocks import BlockManager
from minipaged.config import EngineConfig
from minipaged.prefix import ROOT, PrefixBlockManager, block_name, make_block_manager
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence

from .fake_model import FakeModel
from .ledger import says

NUM_BLOCKS, SIZE = 6, 2
texts = st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=8)
salts = st.sampled_from([None, None, "x"])
somebody_lives = precondition(lambda self: self.live)


def sequence(tokens, salt=None):
    return Sequence("", list(tokens), SamplingParams(), max_len=99, cache_salt=salt)


def state(blocks):
    """Everything that a refused call must leave as it was."""
    pool = blocks.pool
    held = {"ref_counts": list(pool.ref_counts), "free queue": list(pool.free_block_queue)}
    names = {"block_of": {name.hex()[:8]: block for name, block in blocks.block_of.items()}}
    return held | names | {"name_of": [name and name.hex()[:8] for name in blocks.name_of]}


class PrefixCacheMachine(RuleBasedStateMachine):
    """The model beside it: for each slot, the text up to there, and the salt, whose keys and values it holds."""

    WORLD = f"{NUM_BLOCKS} blocks of {SIZE} slots; newcomers are (tokens, salt, how many of them)"

    def __init__(self):
        super().__init__()
        self.blocks = PrefixBlockManager(NUM_BLOCKS, SIZE)
        self.slots = {}
        self.live = []

    def slot(self, seq, position):
        return seq.block_table[position // SIZE] * SIZE + position % SIZE

    def attempt(self, verb, *args):
        before, name = state(self.blocks), verb.__name__
        done = verb(*args)
        says(f"{name} says whether it could, True or False", done in (True, False), said=done)
        changes = {f"{key} before, after": (before[key], now) for key, now in state(self.blocks).items()}
        changed = {key: values for key, values in changes.items() if values[0] != values[1]}
        says("a refused call changes nothing", done or not changed, refused=name, tokens=args[0].tokens, **changed)
        return done

    def give(self, seq, num_tokens, chunks):
        self.blocks.publish(seq, seq.num_computed_tokens + num_tokens)
        chunks.append((seq, num_tokens))

    def admit(self, seq, chunks, data):
        if not self.attempt(self.blocks.adopt, seq):
            says("whoever was refused holds nothing", not seq.block_table, tokens=seq.tokens, table=seq.block_table)
            return
        facts = {"tokens": seq.tokens, "computed": seq.num_computed_tokens, "block_table": seq.block_table}
        says("one token is left to run", seq.num_pending >= 1, **facts)
        says("room for the whole prompt, no more", len(seq.block_table) == -(-len(seq.tokens) // SIZE), **facts)
        self.live.append(seq)
        self.give(seq, data.draw(st.integers(1, seq.num_pending)), chunks)

    @rule(data=st.data(), newcomers=st.lists(st.tuples(texts, salts, st.integers(1, 2)), max_size=2))
    def step(self, data, newcomers):
        """Running ones first, then newcomers, twins among them; then everything is written, then read."""
        chunks = []
        for seq in self.live:
            num_tokens = data.draw(st.integers(0, min(3, seq.num_pending)))
            if num_tokens and self.attempt(self.blocks.reserve, seq, num_tokens):
                self.give(seq, num_tokens, chunks)
        for tokens, salt, num_twins in newcomers:
            for _ in range(num_twins):
                self.admit(sequence(tokens, salt), chunks, data)
        drafts = {seq: self.guess(seq, num_tokens, data) for seq, num_tokens in chunks if num_tokens == seq.num_pending}
        self.run(chunks, data, drafts)

    def guess(self, seq, num_tokens, data):
        """Drafts for whoever reaches its end, as many as there is room for."""
        drafts = data.draw(st.lists(st.integers(0, 1), max_size=3))
        while drafts and not self.attempt(self.blocks.reserve, seq, num_tokens + len(drafts)):
            drafts.pop()
        return drafts

    def run(self, chunks, data, drafts=None):
        written, drafts = set(), drafts or {}
        for seq, num_tokens in chunks:
            text = (*seq.tokens[: seq.num_computed_tokens + num_tokens], *drafts.get(seq, ()))
            for p in range(seq.num_computed_tokens, len(text)):
                slot = self.slot(seq, p)
                facts = {"slot": slot, "block": slot // SIZE, "tokens": seq.tokens, "block_table": seq.block_table}
                says("no slot is written twice in a step", slot not in written, **facts)
                written.add(slot)
                self.slots[slot] = (text[: p + 1], seq.cache_salt)
        for seq, num_tokens in chunks:
            seq.num_computed_tokens += num_tokens
            if not seq.num_pending:
                self.verify(seq, drafts.get(seq, []), data)

    def verify(self, seq, drafts, data):
        """Some of the drafts were right; whatever the model says next was not among them."""
        num_right = data.draw(st.integers(0, len(drafts)))
        word = 1 - drafts[num_right] if num_right < len(drafts) else data.draw(st.integers(0, 1))
        seq.tokens += [*drafts[:num_right], word]
        seq.num_computed_tokens += num_right
        if drafts:
            self.blocks.settle(seq)
            needed = -(-seq.num_computed_tokens // SIZE)
            assert len(seq.block_table) == needed, "room for wrong guesses is given back"

    @somebody_lives
    @rule(data=st.data(), comes_back=st.booleans())
    def leave(self, data, comes_back):
        seq = data.draw(st.sampled_from(self.live), "who leaves")
        self.live.remove(seq)
        self.blocks.release(seq)
        if comes_back:
            chunks = []
            self.admit(seq, chunks, data)
            self.run(chunks, data)

    @rule()
    def reset(self):
        in_use = bool(self.live)
        assert self.blocks.reset() is not in_use, "a reset is refused while a block is in use"
        assert in_use or not self.blocks.block_of

    @invariant()
    def free_and_held_partition_the_pool(self):
        self.blocks.check_integrity(self.live)

    @invariant()
    def everybody_reads_their_own_text(self):
        for seq in self.live:
            for p in range(seq.num_computed_tokens):
                there, own = self.slots.get(self.slot(seq, p)), (tuple(seq.tokens[: p + 1]), seq.cache_salt)
                facts = {"block_table": seq.block_table, "slot": self.slot(seq, p), "finds": there, "wrote": own}
                says("everybody reads their own text", there == own, **facts)

    @invariant()
    def a_name_is_its_content_and_its_parent_is_known(self):
        named = {block for block, name in enumerate(self.blocks.name_of) if name}
        found = {block for name, block in self.blocks.block_of.items() if self.blocks.name_of[block] == name}
        facts = {"blocks in block_of": sorted(self.blocks.block_of.values()), "blocks with a name_of": sorted(named)}
        says("block_of and name_of agree", found == named and len(found) == len(self.blocks.block_of), **facts)
        for name, block in self.blocks.block_of.items():
            text, salt = self.slots.get(block * SIZE + SIZE - 1, ((), None))
            parent = ROOT
            for start in range(0, len(text), SIZE):
                says("a head outlives its tail", start == 0 or parent in self.blocks.block_of, text=text)
                extra = (salt,) if start == 0 and salt is not None else ()
                parent = block_name(parent, list(text[start : start + SIZE]), extra)
            says("a name is its content", parent == name, block=block, text=text, salt=salt)


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(settings.get_profile("ci"), max_examples=120, stateful_step_count=25)


def serve(engine, *requests, max_tokens=3):
    """One after the other, each to its end: the tokens, and how many were found at its admission."""
    results = []
    for prompt in requests:
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
        while engine.has_unfinished_requests():
            (output,) = engine.step() or [None]
            engine.check_integrity()
        results.append((output.outputs[0].token_ids, output.num_cached_tokens))
    return results


def engine(level=4, vocab_size=512, **fields):
    fields = {"num_blocks": 64, "block_size": 4, "max_model_len": 600} | fields
    return load(level).Engine(EngineConfig(**fields), FakeModel(vocab_size=vocab_size))


def cold(*requests, **fields):
    return [serve(engine(3, **fields), prompt)[0][0] for prompt in requests]


def test_a_prompt_that_is_known_to_the_last_token_still_runs_its_last_block():
    prompt = list(range(2, 10))
    (first, none), (second, some) = serve(engine(), prompt, prompt)
    assert (none, some) == (0, 4)
    assert first == second == cold(prompt)[0]


def test_a_block_handed_out_for_something_new_has_lost_its_name():
    x, y = [1, 2, 3, 4, 9], [5, 6, 7, 8, 9]
    results = serve(engine(num_blocks=2), x, y, x)
    assert [num_found for _, num_found in results] == [0, 0, 0]
    assert [token_ids for token_ids, _ in results] == cold(x, y, x)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 0], [9, 9, 9, 9, 5, 6, 7, 8, 0]),  # the same second block after another first
        ([40, 50, 60, 70, 0], [40 + 31, 50 - 1, 60, 70, 0]),  # what a hash of 31 x + y would take for equal
        ([1, 23, 4, 5, 0], [12, 3, 4, 5, 0]),  # what a hash of the digits would
    ],
)
def test_equal_names_mean_equal_texts(one, other):
    assert [num_found for _, num_found in serve(engine(), one, other)] == [0, 0]


def test_a_tail_is_handed_out_before_its_head():
    prompt = list(range(2, 15))  # three full blocks and a token
    small = engine(num_blocks=5)
    serve(small, prompt, [99] * 7)  # needs two blocks (and three when it has answered): one was never used
    ((_, found),) = serve(small, prompt)
    says("of three known blocks the last was handed out, so the first two are found again", found == 8, tokens=found)


def test_a_reset_is_refused_while_somebody_runs():
    busy, prompt = engine(), list(range(2, 15))
    request_id = busy.add_request(prompt, SamplingParams(temperature=0, max_tokens=5))
    busy.step()
    assert not busy.reset_prefix_cache()
    busy.abort(request_id)
    assert busy.reset_prefix_cache()
    assert serve(busy, prompt)[0][1] == 0


def test_full_blocks_are_found_and_only_the_rest_is_new():
    small, prompt = engine(num_blocks=10, block_size=16), list(range(55))
    first = small.add_request(prompt, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    small.step()
    assert (small.blocks.num_free_blocks, len(small.blocks.block_of)) == (6, 3)
    small.add_request([*prompt[:48], 100, 101, 102, 103, 104], SamplingParams(temperature=0, max_tokens=2))
    small.step()
    assert small.trace.steps[-1].cached_tokens == {"1": 48}
    assert small.blocks.num_free_blocks == 5, "one new block"
    while small.has_unfinished_requests():
        small.step()
    assert first == "0"
    assert small.blocks.num_free_blocks == 10
    assert serve(small, [*prompt[:48], 200])[0][1] == 48


def test_of_48_known_tokens_32_are_found_and_with_more_behind_them_48():
    roomy, prompt = engine(block_size=16), list(range(48))
    assert [num_found for _, num_found in serve(roomy, prompt, prompt, [*prompt, 60, 61, 62, 63])] == [0, 32, 48]


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_who_come_at_once_compute_a_common_beginning_once(seed):
    rng = Random(seed)
    shared = [rng.randrange(2, 500) for _ in range(512)]
    prompts = [shared + [rng.randrange(2, 500) for _ in range(rng.randrange(16, 33))] for _ in range(100)]
    many = engine(block_size=16, num_blocks=800, max_num_seqs=100, max_num_batched_tokens=256)
    for prompt in prompts:
        many.add_request(prompt, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    said = {}
    while many.has_unfinished_requests():
        said |= {output.request_id: output.outputs[0].token_ids for output in many.step()}
        many.check_integrity()
    num_run = sum(sum(step.num_scheduled_tokens.values()) for step in many.trace.steps)
    num_own = sum(len(prompt) - 512 for prompt in prompts)
    assert num_run - 100 <= 512 + num_own, "each of the hundred second tokens is a chunk of one"
    assert [said[str(i)] for i in range(3)] == [
        serve(engine(3, block_size=16), prompt, max_tokens=2)[0][0] for prompt in prompts[:3]
    ]
    assert max(step.reserved_slots for step in many.trace.steps) <= 512 + sum(len(p) - 512 + 1 + 16 for p in prompts)


def test_a_salt_shares_with_nobody_else():
    salted, prompt = engine(), list(range(2, 15))
    found = []
    for salt in (None, "a", "a", "b", None):
        salted.add_request(prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), cache_salt=salt)
        (output,) = salted.step()
        found.append(output.num_cached_tokens)
    assert found == [0, 0, 12, 0, 12]


def test_whoever_gave_way_finds_what_they_computed():
    tight = engine(num_blocks=8, block_size=4, max_model_len=40)
    for i in range(2):
        tight.add_request(
            [10 * i + j + 2 for j in range(9)], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        )
    while tight.has_unfinished_requests():
        tight.step()
    again = [step.cached_tokens for step in tight.trace.steps if step.cached_tokens and step.step > 0]
    assert again, "somebody gave way and came back"
    assert any(num_found for cached in again for num_found in cached.values())


def test_without_prefix_caching_nothing_is_remembered():
    prompt = list(range(2, 15))
    assert [n for _, n in serve(engine(enable_prefix_caching=False), prompt, prompt)] == [0, 0]
    assert type(make_block_manager(EngineConfig(num_blocks=2, enable_prefix_caching=False))) is BlockManager


def test_twins_that_fill_a_block_in_one_step_end_up_with_one():
    twins = engine()
    for _ in range(2):
        twins.add_request([2, 3, 4], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    tables = []
    while twins.has_unfinished_requests():
        twins.step()
        tables.append([list(seq.block_table) for seq in twins.holders])
    first, second = tables[6]
    assert first[0] == second[0], "their first block is one, since the step after both filled it"


def step_of_one_token(blocks, *seqs):
    """Everybody runs their newest token and says 0."""
    for seq in seqs:
        assert blocks.reserve(seq, 1)
        blocks.publish(seq, seq.num_computed_tokens + 1)
    for seq in seqs:
        seq.num_computed_tokens += 1
        seq.tokens.append(0)


def test_a_duplicate_is_given_up_for_the_block_named_first_or_its_tail_would_outlive_the_head():
    blocks = PrefixBlockManager(NUM_BLOCKS, SIZE)
    first, second, other = sequence([0]), sequence([0]), sequence([1] * 6)
    for _ in range(5):
        step_of_one_token(blocks, first, second)
    assert first.block_table[:2] == second.block_table[:2], "twins that grew side by side"
    blocks.release(first)
    assert blocks.adopt(other), "takes all that nobody holds"
    assert blocks.num_free_blocks == 0
    assert len(blocks.find(sequence([0] * 6))) == 2, "whoever comes next still finds what the second one holds"


def test_a_duplicate_that_is_given_up_is_handed_out_before_whatever_is_known():
    blocks = PrefixBlockManager(NUM_BLOCKS, SIZE)
    first, second = sequence([0]), sequence([0])
    for _ in range(3):
        step_of_one_token(blocks, first, second)
    assert (first.block_table, second.block_table) == ([0, 2], [0, 3])
    assert list(blocks.pool.free_block_queue) == [1, 4, 5]


def test_what_a_guess_took_and_did_not_need_is_handed_out_next():
    blocks = PrefixBlockManager(4, SIZE)
    old, seq = sequence([0, 0, 0, 0]), sequence([1])
    assert blocks.adopt(old)
    blocks.publish(old, 4)
    old.num_computed_tokens = 4
    blocks.release(old)
    assert blocks.adopt(seq)
    blocks.publish(seq, 1)
    for _ in range(5):
        assert blocks.reserve(seq, 1 + 2), "the newest token and two guesses"
        seq.num_computed_tokens = 1
        blocks.settle(seq)
        assert len(seq.block_table) == 1
    assert len(blocks.block_of) == 2, "wrong guesses again and again do not wash the cache out"


class BrokenStepError(Exception):
    pass


def breaking():
    """Meanwhile no forward succeeds."""
    return patch.object(FakeModel, "__call__", side_effect=BrokenStepError)


@pytest.mark.parametrize("level", [4, 5, 6])
def test_what_a_broken_step_never_computed_is_not_found_later(level):
    broken, prompt = engine(level), list(range(2, 23))
    request_id = broken.add_request(prompt, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    with breaking(), pytest.raises(BrokenStepError):
        broken.step()
    broken.abort(request_id)
    assert serve(broken, prompt) == [(cold(prompt)[0], 0)]


@pytest.mark.parametrize("level", [4, 5, 6])
@pytest.mark.parametrize("leaves", [0, 1, 2, None])
def test_whoever_borrowed_what_a_broken_step_never_computed_begins_again(level, leaves):
    broken, prompt = engine(level), list(range(2, 23))
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    broken.add_request([30, 31], params, "early")
    broken.step()
    for i in range(3):
        broken.add_request(prompt, params, str(i))
    with breaking(), pytest.raises(BrokenStepError):
        broken.step()
    broken.abort(str(leaves))
    said = {}
    while broken.has_unfinished_requests():
        said |= {output.request_id: output.outputs[0].token_ids for output in broken.step()}
        broken.check_integrity()
    (expected,), (early,) = cold(prompt), cold([30, 31])
    assert said == {"early": early} | {str(i): expected for i in range(3) if i != leaves}


def judge_broken_steps():
    for leaves in (0, None):
        test_whoever_borrowed_what_a_broken_step_never_computed_begins_again(4, leaves)


def test_what_ended_in_an_error_is_not_shared():
    one, prompt = engine(), list(range(2, 15))
    one.model.unlucky = frozenset({14})
    (_, none) = serve(one, prompt)[0]
    assert serve(one, [*prompt[:-1], 20])[0][1] == none == 0
