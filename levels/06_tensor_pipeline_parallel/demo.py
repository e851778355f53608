"""One long text is read and continued, on as many devices as are given."""

from levels.texts import PASSAGE

CONFIG = {"max_model_len": 1024, "num_blocks": 256}
REQUESTS = [
    {"messages": [{"role": "user", "content": f"Continue:\n\n{text}"}], "max_tokens": 32}
    for text in PASSAGE.split("\n\n")[:4]
]
LOOK_AT = ("output tokens/s",)
