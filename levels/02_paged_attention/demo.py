"""Twelve people ask about texts of different lengths, in the memory of four rows of 1,024 slots."""

from levels.texts import ask

CONFIG = {"max_model_len": 1024, "num_blocks": 256}  # 4,096 slots
REQUESTS = [{"messages": ask(i, 120 + 16 * (i * 5 % 12)), "max_tokens": 16 + 4 * (i * 7 % 12)} for i in range(12)]
LOOK_AT = ("KV waste (reserved, never used)", "most requests in one step")
