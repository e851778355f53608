"""A hundred people ask one assistant: their prompts begin with the same 190 tokens or so, and end with a question."""

from levels.texts import PASSAGE, QUESTIONS

SYSTEM = "You answer questions about this text. " + " ".join(PASSAGE.split()[:150])
CONFIG = {"max_model_len": 1024, "num_blocks": 1024, "max_num_seqs": 100, "max_num_batched_tokens": 512}
REQUESTS = [
    {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"I am visitor {i}. {QUESTIONS[i % len(QUESTIONS)]}"},
        ],
        "max_tokens": 8,
        "ignore_eos": True,
    }
    for i in range(100)
]
LOOK_AT = (
    "tokens run through the model",
    "prompt tokens found",
    "first token after (mean)",
    "KV slots reserved (mean)",
)
