"""The core's own process: it sleeps until something comes, turns its engine while there is work, and waits for nobody.

    inbox    PULL   drained between two steps          a message that cannot be read is dropped, with a line in the log
    outbox   PUSH   never blocks                       whoever listens is not waited for
    asleep          looks after its engine's ranks     one that is gone is told of, though nobody asked for anything
    stdin           ends when the parent is gone       then this process goes too, and all that it has started

Ctrl-C at a terminal is the parent's to answer. Invariant: whatever ends this process, the parent is told why in one
line, or sees that it is gone; nothing of it outlives the parent. (From level 07.)"""

import os
import shutil
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import zmq

from ..config import EngineConfig
from ..progress import say
from .loop import EngineCore
from .messages import Command, Died, Ready, Start, Stop, decode_command, encode, pack_config
from .pace import make_pace
from .turnable import Turnable

INBOX, OUTBOX = "inbox", "outbox"
LINGER_MS = 2000  # for the last words to get out
WATCH_MS = 1000  # with nothing to do: how often to look whether the engine's ranks are there
MakeEngine = Callable[[EngineConfig, int, Path], Turnable]  # config, which replica, where all replicas meet


def serve(folder: str, make_engine: MakeEngine) -> int:
    """Run a core that its parent reaches through two sockets in folder; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=go_with_parent, args=[Path(folder).parent], daemon=True).start()
    with zmq.Context() as context:
        inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        with inbox, outbox:
            open_sockets(inbox, outbox, folder)
            try:
                live(inbox, outbox, make_engine, Path(folder).parent)
            except Exception as error:
                outbox.send(encode(last_words(error)))
                return 1
    return 0


def go_with_parent(folder: Path) -> None:
    """stdin is a pipe that only the parent holds: it ends with the parent, however that ends."""
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)  # still there if it was killed before all were ready
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def open_sockets(inbox: "zmq.Socket[bytes]", outbox: "zmq.Socket[bytes]", folder: str) -> None:
    """Whoever sends connects: that queues what is sent at once, whether the other is there or not."""
    for socket in (inbox, outbox):
        socket.set_hwm(0)  # as much as it takes: nobody may be made to wait
        socket.linger = LINGER_MS
    inbox.bind(f"ipc://{Path(folder, INBOX)}")
    outbox.connect(f"ipc://{Path(folder, OUTBOX)}")


def last_words(error: Exception) -> Died:
    message = " ".join(str(error).split()) or type(error).__name__
    refused = isinstance(error, ValueError | TypeError)
    return Died(message if refused else f"{type(error).__name__}: {message}", traceback.format_exc(), refused)


def live(inbox: "zmq.Socket[bytes]", outbox: "zmq.Socket[bytes]", make_engine: MakeEngine, folder: Path) -> None:
    """From the first message to Stop."""
    start = decode_command(inbox.recv())
    if not isinstance(start, Start):
        raise TypeError(f"the first message must be Start, not {type(start).__name__}")
    config = EngineConfig(**start.config)
    engine = make_engine(config, start.replica, folder)
    try:
        outbox.send(encode(Ready(pack_config(engine.config))))
        run(EngineCore(engine, make_pace(config)), inbox, outbox)
    finally:
        engine.shutdown()


def run(core: EngineCore, inbox: "zmq.Socket[bytes]", outbox: "zmq.Socket[bytes]") -> None:
    while True:
        for command in drain(inbox, 0 if core.is_due else WATCH_MS):
            if isinstance(command, Stop):
                return
            for event in core.take(command):
                outbox.send(encode(event))
        if core.is_due:
            outbox.send(encode(core.turn()))
        else:
            core.engine.check_alive()


def drain(inbox: "zmq.Socket[bytes]", wait_ms: int) -> list[Command]:
    """Whatever has come; if nothing has, it sleeps until something does, or the time is over."""
    commands: list[Command] = []
    inbox.poll(wait_ms)
    while inbox.poll(0):
        message = inbox.recv()
        try:
            commands.append(decode_command(message))
        except ValueError as error:
            say(f"engine core: a message of {len(message)} bytes is dropped: {error}")
    return commands
