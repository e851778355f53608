"""minipaged: an LLM inference engine, built level by level."""

from .config import EngineConfig
from .llm import LLM
from .outputs import RequestOutput
from .sampling_params import SamplingParams
from .serving.async_llm import AsyncLLM

__all__ = ["LLM", "AsyncLLM", "EngineConfig", "RequestOutput", "SamplingParams"]
