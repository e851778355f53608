"""A recording on a GPU is a CUDA graph: launches with their arguments, kept by the driver and started by one call.

    record(work)    work runs once as it is, so that Triton compiles and cuBLAS chooses; then it is captured, not run
    replay()        all of it again, with the same addresses

Whatever is allocated while capturing comes from a pool of the graphs' own, which all of them share: they run one after
the other, and none keeps anything but its logits, which lie elsewhere. (From level 01.)"""

from collections.abc import Callable

import torch

from .graphs import Replay


class CudaRecorder:
    """num_bytes: what the pool has taken from the device so far."""

    def __init__(self, device: torch.device):
        self.device, self.num_bytes = device, 0
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], object]) -> Replay:
        work()
        torch.cuda.synchronize(self.device)
        before, graph = torch.cuda.memory_reserved(self.device), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            work()
        self.num_bytes += max(0, torch.cuda.memory_reserved(self.device) - before)
        return graph.replay
