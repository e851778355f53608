"""Ray places the ranks: each is an actor, somewhere in its cluster, which calls the driver and serves it.

    driver    Exchange(address)  <---- call ----  actor     serves until its line is closed
              ray.remote(...)    ----- start -->            a CPU for each, or a GPU

Ray starts and ends them; what is said goes over lines, as everywhere. RAY_ADDRESS names a cluster; without, one is used
that runs on this host, or a new one is started and ended here. Invariant: an actor lives no longer than its line.
(From level 06; needs `pip install 'minipaged[ray]'`.)"""

import logging
import os
from typing import Any

import ray

from .lines import LOOPBACK, Exchange, Line, call

CALL_S = 120.0  # for all actors to be placed, and to call


class RayCluster:
    """The launcher of `ray`. device: what each rank needs one of."""

    def __init__(self, device: str):
        self.kind = "GPU" if device == "cuda" else "CPU"
        self.is_ours = not ray.is_initialized()
        if self.is_ours:
            ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        nodes = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        here = ray.util.get_node_ip_address()
        self.host = LOOPBACK if nodes == {here} else here
        self.actors: list[Any] = []
        self.serving: list[Any] = []  # what Ray promises of each

    def start(self, num_ranks: int) -> list[Line]:
        if (there := int(ray.cluster_resources().get(self.kind, 0))) < num_ranks:
            self.stop(0.0)
            raise ValueError(f"ray has {there} {self.kind}s, and {num_ranks} ranks need one each")
        exchange = Exchange(self.host)
        needs = {"num_gpus": 1} if self.kind == "GPU" else {"num_cpus": 1}
        place = ray.remote(Actor).options(**needs)
        try:
            self.actors = [place.remote() for _ in range(num_ranks)]
            address, key = exchange.address, exchange.key
            self.serving = [actor.serve.remote(address, key, rank) for rank, actor in enumerate(self.actors)]
            return exchange.accept(range(num_ranks), CALL_S)
        except BaseException:
            self.stop(0.0)
            raise
        finally:
            exchange.close()

    def describe_end(self, rank: int) -> str:
        return "its line is closed"

    def stop(self, seconds: float) -> None:
        if self.serving:
            ray.wait(self.serving, num_returns=len(self.serving), timeout=seconds)
        for actor in self.actors:
            ray.kill(actor)
        self.actors, self.serving = [], []
        if self.is_ours:
            ray.shutdown()
            self.is_ours = False  # the next one is somebody else's


class Actor:
    """What runs where Ray puts it."""

    def serve(self, address: tuple[str, int], key: str, rank: int) -> None:
        if address[0] == LOOPBACK:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        from .rank import LEFT_ALONE, Rank  # here: the driver's side needs no torch for it

        Rank(call(address, key, rank), leave=lambda: os._exit(LEFT_ALONE)).serve()
