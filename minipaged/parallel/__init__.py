"""One engine on many devices, and many engines in step.

    executor.py    hides how many devices a batch takes        worker.py    one device's share of the work

(From level 06.)"""

from .executor import Executor, make_executor
from .worker import Result

__all__ = ["Executor", "Result", "make_executor"]
