"""What has happened since the start, as numbers that only grow: for whoever watches a server from outside.

    tokens    prompt_tokens, generation_tokens        cache     prefix_queries, prefix_hits
    guesses   draft_tokens, accepted_tokens           steps     steps, preemptions

Prompt tokens count when a choice begins to answer, once for each choice; as many were looked up in the prefix cache.
Invariant: nothing is ever taken back, whoever gives way, fails or leaves. (From level 07.)"""

from dataclasses import dataclass

from ..sequence import Sequence
from ..trace.steps import StepRecord
from .messages import Gain


@dataclass
class Counters:
    """All from 0."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    steps: int = 0

    def count_gain(self, seq: Sequence, gain: Gain) -> None:
        """Before seq takes it."""
        if gain.token_ids and len(seq.tokens) == seq.num_prompt_tokens:
            self.prompt_tokens += seq.num_prompt_tokens
            self.prefix_queries += seq.num_prompt_tokens
            self.prefix_hits += gain.num_cached_tokens
        self.generation_tokens += len(gain.token_ids)

    def count_step(self, record: StepRecord) -> None:
        self.steps += 1
        self.preemptions += len(record.preempted)
        self.draft_tokens += sum(record.draft_tokens.values())
        self.accepted_tokens += sum(record.accepted_tokens.values())
