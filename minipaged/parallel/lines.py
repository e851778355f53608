"""A line is one rank's connection to the driver: whole messages, in order, and an end that both sides notice at once.

    driver   Line ------------------ Line   rank      a pair of sockets, one for a child process; or over the network,
             one thread hears all,          reads     where callers must show that they know the key
             and waits for no half message

The kernel closes a line when either process is gone, however it went: that is the news of its death; a host that is
gone is noticed by TCP's keep-alive. Invariant: nobody waits for a stranger who says nothing; a message is decoded as
one that is expected there, or refused. (From level 06.)"""

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec

from .messages import ENCODER, ORDERS, REPLIES, Order, Reply

LOOPBACK = "127.0.0.1"
GREETING_S = 5.0  # for a caller to show that it knows the key
SILENCE_S = 4  # after which a host that does not even acknowledge is taken for gone
LENGTH = struct.Struct("!Q")  # in front of each message, bytes
MOUTHFUL = 1 << 20  # bytes that are taken at once
NONCE, PROOF = 32, 32  # bytes
Message = TypeVar("Message")


class Line:
    """One end. One thread may send and another hear, at the same time."""

    def __init__(self, end: socket.socket):
        self.end = end
        self.half = bytearray()  # what has come of a reply that is not complete

    def send(self, message: Order | Reply) -> None:
        """Raises OSError when nobody is there any more."""
        data = ENCODER.encode(message)
        self.end.sendall(LENGTH.pack(len(data)) + data)

    def hear_order(self) -> Order:
        """Raises OSError when nobody is there any more, and for what is no order."""
        return decode(ORDERS, self.hear())

    def hear_replies(self) -> Generator[Reply]:
        """Those that are complete by what has come, which something must have: so this never waits for the rest.

        Raises OSError when nobody is there any more, and for what is no reply."""
        if not (received := self.end.recv(MOUTHFUL)):
            raise ConnectionResetError("the line is closed")
        self.half += received
        while len(self.half) >= (start := LENGTH.size) and len(self.half) >= (
            end := start + LENGTH.unpack_from(self.half)[0]
        ):
            message = self.half[start:end]
            del self.half[:end]
            yield decode(REPLIES, message)

    def hear(self) -> bytearray:
        return read(self.end, LENGTH.unpack(read(self.end, LENGTH.size))[0])

    def fileno(self) -> int:
        return self.end.fileno()

    def hang_up(self) -> None:
        """The other side notices; whoever uses this end right now may."""
        with suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end.close()


def decode(decoder: "msgspec.msgpack.Decoder[Message]", data: bytearray) -> Message:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise OSError(f"what was said is not expected here: {error}") from error


def read(end: socket.socket, num_bytes: int) -> bytearray:
    data, filled = bytearray(num_bytes), 0
    with memoryview(data) as view:
        while filled < num_bytes:
            if not (received := end.recv_into(view[filled:])):
                raise ConnectionResetError("the line is closed")
            filled += received
    return data


def make_pair() -> tuple[Line, Line]:
    """Both ends; one of them may be a child's."""
    ours, theirs = socket.socketpair()
    return Line(ours), Line(theirs)


class Exchange:
    """Where ranks call in from elsewhere: a free port, and a key that only they are told."""

    def __init__(self, host: str):
        self.server = socket.create_server((host, 0))
        self.address: tuple[str, int] = (host, self.server.getsockname()[1])
        self.key = secrets.token_hex(32)

    def accept(self, ranks: range, seconds: float) -> list[Line]:
        """A line to each of them. Raises RuntimeError if somebody does not call in time."""
        lines: dict[int, Line] = {}
        deadline = time.monotonic() + seconds
        while missing := [rank for rank in ranks if rank not in lines]:
            if (left := deadline - time.monotonic()) <= 0:
                raise RuntimeError(f"rank {missing[0]} did not call within {seconds:.0f} s")
            self.server.settimeout(left)
            try:
                caller = self.server.accept()[0]
                lines[greet(caller, self.key)] = Line(caller)
            except OSError:  # too late, or a stranger
                continue
        return [lines[rank] for rank in ranks]

    def close(self) -> None:
        self.server.close()


def greet(caller: socket.socket, key: str) -> int:
    """The number of the rank that calls. Raises OSError for whoever does not know the key."""
    with carefully(caller):
        caller.sendall(nonce := secrets.token_bytes(NONCE))
        their_nonce, shown, rank = (bytes(read(caller, n)) for n in (NONCE, PROOF, LENGTH.size))
        if not hmac.compare_digest(shown, prove(key, nonce + their_nonce + rank)):
            raise ConnectionRefusedError("a caller does not know the key")
        caller.sendall(prove(key, their_nonce))
        return int(LENGTH.unpack(rank)[0])


def call(address: tuple[str, int], key: str, rank: int) -> Line:
    """The rank's end of a line to the driver. Raises OSError if it is not there, or does not know the key."""
    end = socket.create_connection(address, timeout=GREETING_S)
    with carefully(end):
        nonce, number = secrets.token_bytes(NONCE), LENGTH.pack(rank)
        their_nonce = bytes(read(end, NONCE))
        end.sendall(nonce + prove(key, their_nonce + nonce + number) + number)
        if not hmac.compare_digest(bytes(read(end, PROOF)), prove(key, nonce)):
            raise ConnectionRefusedError("whoever answers does not know the key")
    return Line(end)


def prove(key: str, message: bytes) -> bytes:
    return hmac.digest(key.encode(), message, "sha256")


@contextmanager
def carefully(end: socket.socket) -> Iterator[None]:
    """Greet within GREETING_S; afterwards wait as long as it takes, but not for a host that is gone."""
    try:
        end.settimeout(GREETING_S)
        yield
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", SILENCE_S - 1)):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
    except BaseException:
        end.close()
        raise
