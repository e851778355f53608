"""The engine stays as it is; what is added are listeners.

    clients   A   B   C     over HTTP; each reads as fast as it likes, and leaves when it likes
              |   |   |
    front     a letterbox each: text becomes tokens, tokens text; keys, queue, metrics; never waits for the engine
                  |
    core      step step step     level 07's engine, in a process of its own: never waits for a client

Invariant: nothing below knows that anybody listens; whoever goes away leaves no request and no block behind
(minipaged/serving)."""

from minipaged.core.router import LeastLoaded as Router
from minipaged.engine import Engine as Replica
from minipaged.parallel.data_parallel import DataParallelEngine as Engine
from minipaged.scheduler import Scheduler
from minipaged.serving.async_llm import AsyncLLM as Frontend
from minipaged.serving.server import serve

__all__ = ["Engine", "Frontend", "Replica", "Router", "Scheduler", "serve"]
