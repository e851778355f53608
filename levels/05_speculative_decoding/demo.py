"""Three people want a text copied: what the answer says next has been in front of the model all along."""

from dataclasses import replace

from levels.texts import PASSAGE
from minipaged.config import EngineConfig

PARAGRAPHS = PASSAGE.split("\n\n")
CONFIG = {"max_model_len": 1024, "num_blocks": 512, "num_speculative_tokens": 5}
REQUESTS = [
    {"messages": [{"role": "user", "content": f"{wish}\n\n{PARAGRAPHS[i]}"}], "max_tokens": 100}
    for i, wish in enumerate(
        (
            "Repeat this text word by word:",
            "Copy this text, and change nothing:",
            "Write the first three sentences of this text, word by word:",
        )
    )
]
LOOK_AT = ("output tokens/s", "tokens guessed", "tokens per forward")
NEW_TEXT = [
    {"messages": [{"role": "user", "content": wish}], "max_tokens": 100}
    for wish in (
        "Write a short story about a lighthouse keeper.",
        "Explain why the sky is blue, to a child of six.",
        "Invent three names for a bakery, and say why they are good.",
    )
]


def drafting_for_itself(config: EngineConfig) -> EngineConfig:
    """The only draft model at hand that reads the same tokens is the model itself."""
    return replace(config, num_speculative_tokens=3, speculative_method="draft_model", draft_model=config.model)


MORE = (
    ("Three people want something new: nothing to copy from, and a wrong guess costs a row.", NEW_TEXT, replace),
    ("The copying again, drafted by the model itself: always right, and just as slow.", REQUESTS, drafting_for_itself),
)
