r"""More engines, and a router in front: whoever comes goes to the one with the least to do.

    requests -> router --> replica 0    4 x waiting + running = 6
                       \-> replica 1    4 x waiting + running = 3    <- the next one goes here

Each replica is level 06's engine, in a process of its own, with its own scheduler, blocks and weights. Only experts may
be spread over all of them; then they keep one pace, and whoever has nothing to run lets its experts answer the others.
Invariant: what a request says does not depend on how many replicas there are (minipaged/parallel/data_parallel.py)."""

from minipaged.core.router import LeastLoaded as Router
from minipaged.engine import Engine as Replica
from minipaged.parallel.data_parallel import DataParallelEngine as Engine
from minipaged.scheduler import Scheduler

__all__ = ["Engine", "Replica", "Router", "Scheduler"]
