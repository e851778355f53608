"""One frozen page of numbers says everything an engine may do.

    num_blocks x block_size     the KV memory in slots: what everybody shares
    max_model_len               how long one sequence may grow, prompt and output together
    max_num_seqs                how many sequences may hold memory at once
    max_num_batched_tokens      how many tokens one step may run

Every field is also a command-line flag, from the level that brings it on. Invariant: an EngineConfig that exists is
legal; one that asks for what its level does not have yet is refused by name. (From level 01.)"""

from dataclasses import dataclass, field, fields
from typing import Any

from .checks import check_boolean, check_choice, check_integer, check_number

DEFAULT_MODEL = "smollm2-135m"
CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "load_format": ("auto", "dummy"),
    "attention_backend": ("auto", "torch", "triton"),
    "quantization": ("none", "int8", "int4", "fp8"),
    "kv_cache_dtype": ("auto", "int8", "fp8"),
    "scheduling_policy": ("fcfs", "priority"),
    "speculative_method": ("ngram", "draft_model"),
    "speculative_length": ("fixed", "adaptive"),
    "distributed_executor_backend": ("auto", "uniproc", "mp", "torchrun", "ray"),
    "data_parallel_router": ("load", "prefix"),
}


def option(default: Any, level: int, text: str) -> Any:
    """A field that is also a flag of every level from `level` on; `text` is its help."""
    return field(default=default, metadata={"level": level, "help": text})


@dataclass(frozen=True)
class EngineConfig:
    """Frozen, checked at construction: ValueError or TypeError names the field, the value and the legal range.

    max_model_len and num_blocks may be None until the model is loaded, which fills them in (`loading.load_model`)."""

    model: str = option(DEFAULT_MODEL, 1, "smollm2-135m, a local Hugging Face folder or GGUF file, or a hub id")
    device: str = option("auto", 1, "auto: CUDA when there is one")
    dtype: str = option("auto", 1, "auto: bfloat16 on CUDA, float32 on a CPU")
    load_format: str = option("auto", 1, "dummy: random weights of the config's shapes, no checkpoint needed")
    attention_backend: str = option("auto", 1, "auto: the fastest that runs on the device")
    quantization: str = option(
        "none", 1, "keep weights in fewer bits: int8 loses next to nothing; fp8 is for GPUs that have it"
    )
    kv_cache_dtype: str = option(
        "auto", 1, "how keys and values are kept; auto: as they are, int8 and fp8: narrow, scaled"
    )
    max_model_len: int = option(None, 1, "prompt and output of one request together; default: the model's own")
    max_num_seqs: int = option(64, 1, "how many requests may hold KV memory at once")
    num_blocks: int = option(None, 1, "blocks in the KV pool; default: what the memory allows")
    block_size: int = option(16, 1, "slots (tokens) in one block")
    gpu_memory_utilization: float = option(0.9, 1, "share of a GPU's memory for weights and KV cache together")
    enforce_eager: bool = option(False, 1, "on a GPU: launch every kernel anew, replay no recorded steps")
    seed: int = option(0, 1, "seeds requests that have no seed of their own")
    max_num_batched_tokens: int = option(1024, 3, "token budget of one step")
    long_prefill_token_threshold: int = option(0, 3, "longest chunk of one request in a step; 0: only the budget cuts")
    scheduling_policy: str = option("fcfs", 3, "fcfs, or priority: by priority, then arrival")
    enable_prefix_caching: bool = option(True, 4, "share the blocks of equal beginnings")
    num_speculative_tokens: int = option(
        0, 5, "guess up to so many tokens ahead; 0: none, also for prompts of your own"
    )
    speculative_method: str = option("ngram", 5, "who guesses: the text so far, or a smaller model")
    speculative_length: str = option("fixed", 5, "adaptive: fewer after wrong guesses, more after right ones")
    draft_model: str | None = option(None, 5, "the smaller model; any with the same vocabulary")
    prompt_lookup_min: int = option(2, 5, "ngram: the fewest tokens that must agree")
    prompt_lookup_max: int = option(4, 5, "ngram: how many it tries first")
    tensor_parallel_size: int = option(1, 6, "split every layer's weights across so many ranks")
    pipeline_parallel_size: int = option(1, 6, "split the layers into so many stages")
    pipeline_layers: str | None = option(None, 6, "layers of each stage, e.g. 10,12,8; default: as even as can be")
    rank_memory_gb: float | None = option(
        None, 6, "what one rank may hold, weights and KV cache together; default: as much as its device has"
    )
    distributed_executor_backend: str = option(
        "auto", 6, "who runs the ranks; auto: this process if there is one, else mp"
    )
    data_parallel_size: int = option(1, 7, "replicas: engines of their own, each in a process of its own")
    data_parallel_router: str = option(
        "load", 7, "load: whoever has least to do; prefix: whoever has read most of it before"
    )
    enable_expert_parallel: bool = option(False, 7, "spread the experts of a model that has some over all ranks")
    enable_eplb: bool = option(False, 7, "between waves, move and copy busy experts, so that ranks have alike to do")
    num_redundant_experts: int = option(0, 7, "slots for copies of experts, over all ranks")

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        for name in ("max_num_seqs", "block_size", "max_num_batched_tokens", *sizes):
            check_integer(name, getattr(self, name), 1)
        check_integer("max_model_len", self.max_model_len, 2, optional=True)  # one token in, one token out
        check_integer("num_blocks", self.num_blocks, 1, optional=True)
        check_number("gpu_memory_utilization", self.gpu_memory_utilization, 0, 1, above_low=True)
        if self.rank_memory_gb is not None:
            check_number("rank_memory_gb", self.rank_memory_gb, 0, above_low=True)
        check_integer("seed", self.seed, -(2**63), 2**63 - 1)
        check_integer("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        for name in ("enforce_eager", "enable_prefix_caching", "enable_expert_parallel", "enable_eplb"):
            check_boolean(name, getattr(self, name))
        self.check_speculation()
        self.check_stages()
        self.check_experts()
        if self.distributed_executor_backend == "uniproc" and self.num_ranks > 1:
            raise ValueError(f"distributed_executor_backend uniproc is one process, not {self.num_ranks} ranks")

    def check_speculation(self) -> None:
        check_integer("num_speculative_tokens", self.num_speculative_tokens, 0)
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        check_integer("prompt_lookup_min", low, 1)
        check_integer("prompt_lookup_max", high, 1)
        if high < low:
            raise ValueError(f"prompt_lookup_max {high} is less than prompt_lookup_min {low}")
        if self.draft_model is not None and self.num_speculative_tokens == 0:
            raise ValueError(f"draft_model {self.draft_model!r} would guess nothing: num_speculative_tokens is 0")
        if (self.draft_model is not None) != (self.speculative_method == "draft_model"):
            given = f"draft_model {self.draft_model!r}, speculative_method {self.speculative_method!r}"
            raise ValueError(f"draft_model and speculative_method draft_model belong together, not {given}")

    def check_experts(self) -> None:
        check_integer("num_redundant_experts", self.num_redundant_experts, 0)
        if self.num_redundant_experts and not self.enable_expert_parallel:
            raise ValueError(f"num_redundant_experts {self.num_redundant_experts} needs enable_expert_parallel")
        if self.enable_eplb and not self.shares_experts:
            needed = "enable_expert_parallel and data_parallel_size > 1"
            raise ValueError(f"enable_eplb moves experts between the waves of replicas: it needs {needed}")

    def check_stages(self) -> None:
        if self.pipeline_layers is None:
            return
        legal = (
            f"a number of layers for each of pipeline_parallel_size {self.pipeline_parallel_size}, with commas between"
        )
        if not isinstance(self.pipeline_layers, str):
            raise TypeError(f"pipeline_layers must be text: {legal}, not {self.pipeline_layers!r}")
        numbers = self.pipeline_layers.split(",")
        if len(numbers) != self.pipeline_parallel_size or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            raise ValueError(f"pipeline_layers must be {legal}, not {self.pipeline_layers!r}")

    @property
    def stage_layers(self) -> tuple[int, ...] | None:
        """How many layers each stage is to have; None: as even as can be."""
        return None if self.pipeline_layers is None else tuple(map(int, self.pipeline_layers.split(",")))

    @property
    def num_ranks(self) -> int:
        """Into how many shares the model is split."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def chosen_backend(self) -> str:
        """Who runs the ranks, never "auto"."""
        if self.distributed_executor_backend != "auto":
            return self.distributed_executor_backend
        return "mp" if self.num_ranks > 1 or self.shares_experts else "uniproc"

    @property
    def shares_experts(self) -> bool:
        """Whether a replica needs the others to run a batch."""
        return self.enable_expert_parallel and self.data_parallel_size > 1

    @property
    def max_chunk_len(self) -> int:
        """The longest chunk of one request in a step, tokens."""
        return self.long_prefill_token_threshold or self.max_num_batched_tokens

    def check_level(self, level: int) -> None:
        """Refuse what a later level brings. Raises ValueError with the field's name and its level."""
        for f in fields(self):
            if f.metadata["level"] > level and getattr(self, f.name) != f.default:
                raise ValueError(f"{f.name} comes with level {f.metadata['level']:02}, this is level {level:02}")
