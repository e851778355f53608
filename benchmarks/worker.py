"""The inside of an engine's process: load once, then answer jobs, a line each way.

    harness                                     worker
                                                {"loaded": {...}}            settings
    {"requests": [[ids, max_tokens], ...]}
                                                {"event": "ready"}           all parsed: now it is fair to start a clock
    {"event": "go"}
                                                {"event": "first"}           the first token of any request
                                                {"event": "done"}            the last of all
                                                {"answer": [[ids], ...], "model_s": ..., "peak_memory_mb": ...}

Invariant: between "go" and "done" nothing is written or read but "first". What goes wrong is one line {"error": ...}.
Libraries that print to stdout print to stderr instead. The worker ends when its input does, or its parent."""

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from benchmarks.peers import Peer, make_peer
from benchmarks.workloads import Request

PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>
Send = Callable[[dict[str, Any]], None]


def main(name: str, folder: str) -> None:
    die_with_parent()
    serve(lambda: make_peer(name, Path(folder)), sys.stdin, open_channel())


def open_channel() -> Send:
    """To the harness, over what was stdout; whoever prints from now on prints to stderr."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    return send


def die_with_parent() -> None:
    """A harness that was killed cannot close anybody; its engines must not go on taking the cores of the next run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(load: Callable[[], Peer], source: TextIO, send: Send) -> None:
    """Until the source ends, or something goes wrong: half an engine measures nothing."""
    try:
        peer = load()
        send({"loaded": peer.describe()})
        while line := source.readline():
            answer_job(peer, [Request(*pair) for pair in json.loads(line)["requests"]], source, send)
    except Exception as error:
        complain(error, send)


def complain(error: Exception, send: Send) -> None:
    """The traceback to stderr, one line to the harness."""
    traceback.print_exc()
    send({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"})


def answer_job(peer: Peer, requests: list[Request], source: TextIO, send: Send) -> None:
    send({"event": "ready"})
    if not source.readline():
        return
    answer = peer.run(requests, lambda: send({"event": "first"}))
    send({"event": "done"})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in kB
    send({"answer": answer.token_ids, "model_s": answer.model_s, "peak_memory_mb": round(peak)})


if __name__ == "__main__":
    main(*sys.argv[1:])
