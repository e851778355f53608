"""All ranks of a world meet at one store; replicas that share experts are one world, and meet at the first one's.

    replica 0    opens the store, and leaves its address in a folder that all of them know
    the others   wait for it there; replica i has the ranks from i times its size on

An engine that shares nothing meets nobody but its own ranks. Invariant: a store is at a port that is free on one
address, and reached at no other. (From level 06; replicas from level 07 on.)"""

import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from torch._C._distributed_c10d import TCPStore

ADDRESS = "meeting"  # a file
PATIENCE_S = 120.0  # until the first replica has read its configuration
LOOK_S = 0.02


class Meeting(NamedTuple):
    """replica: whose ranks come; folder: where its replicas leave word, if it has any."""

    replica: int = 0
    folder: Path | None = None

    def find_store(self, host: str) -> TCPStore:
        """Raises RuntimeError if the first replica leaves no word."""
        if self.folder is None or self.replica == 0:
            store = open_store(host)
            if self.folder is not None:
                leave_word(self.folder, store)
            return store
        return TCPStore(*read_word(self.folder), is_master=False, wait_for_workers=False)


OWN = Meeting()  # of one engine's ranks


def open_store(host: str) -> TCPStore:
    server = socket.create_server((host, 0))
    port = server.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())


def leave_word(folder: Path, store: TCPStore) -> None:
    draft = folder / f"{ADDRESS}.{os.getpid()}"
    draft.write_text(f"{store.host} {store.port}")
    draft.rename(folder / ADDRESS)  # there in full, or not at all


def read_word(folder: Path) -> tuple[str, int]:
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / ADDRESS).exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"replica 0 did not say within {PATIENCE_S:.0f} s where all meet")
        time.sleep(LOOK_S)
    host, port = (folder / ADDRESS).read_text().split()
    return host, int(port)
