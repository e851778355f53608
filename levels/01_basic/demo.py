"""Eight people ask about texts of different lengths; every one of them gets a row of 1,024 slots."""

from levels.texts import ask

CONFIG = {"max_model_len": 1024, "num_blocks": 256}  # 4,096 slots: four rows
REQUESTS = [{"messages": ask(i, 60 + 23 * (i * 5 % 8)), "max_tokens": 24 + 9 * (i * 3 % 8)} for i in range(8)]
LOOK_AT = ("KV waste (reserved, never used)", "most requests in one step")
