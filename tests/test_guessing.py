"""Whoever guesses, and however wrongly: nothing but the number of steps depends on it."""

import pytest

from .guessing import BESTIARY, guess_storm


@pytest.mark.parametrize("hundred", range(5))
def test_no_storm_of_guesses_changes_what_is_said_or_leaves_anything_behind(hundred):
    lives = [guess_storm(5, seed) for seed in range(100 * hundred, 100 * hundred + 100)]
    assert {life.kind for life in lives} == set(BESTIARY)
    steps = [step for life in lives for step in life.engine.trace.steps]
    assert any(step.accepted_tokens != step.draft_tokens for step in steps)
    assert any(step.preempted for step in steps)
    assert any(step.draft_tokens and any(step.cached_tokens.values()) for step in steps)
