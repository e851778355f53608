"""Processes that may be left behind, found by what they inherit, whoever their parent is by then.

mark = new_mark()                  an environment variable that all children of children have, too
with_mark(mark)                    the environment to start one with
survivors(mark)                    their ids, as the kernel knows them
gone(mark, seconds)                whether there are none, at the latest then"""

import os
import time
from pathlib import Path
from uuid import uuid4

NAME = "MINIPAGED_TEST_MARK"


def new_mark():
    return uuid4().hex


def with_mark(mark):
    return {**os.environ, NAME: mark}


def survivors(mark):
    wanted, found = f"{NAME}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:  # gone by now, or nobody's business
                continue
            if wanted in environment.split(b"\0"):  # that of a zombie is empty
                found.append(int(folder.name))
    return found


def gone(mark, seconds=5.0):
    deadline = time.monotonic() + seconds
    while survivors(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def listening_ports(pid):
    """The TCP ports, IPv4 and IPv6, on which a process listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add((fields[1].rpartition(":")[0], int(fields[1].rpartition(":")[2], 16)))
    return ports
