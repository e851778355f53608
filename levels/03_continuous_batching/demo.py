"""Ten people, four seats: the first wants a long answer, the nine others short ones of staggered lengths."""

from levels.texts import ask

CONFIG = {"max_model_len": 1024, "num_blocks": 256, "max_num_seqs": 4}
LENGTHS = [192, 20, 12, 36, 16, 28, 40, 24, 32, 14]
REQUESTS = [{"messages": ask(i, 30 + 6 * i), "max_tokens": n, "ignore_eos": True} for i, n in enumerate(LENGTHS)]
LOOK_AT = ("short ones done after (mean)", "output tokens/s")
