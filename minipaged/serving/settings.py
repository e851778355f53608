"""How the server shows itself to the world, as one frozen page.

    --host 127.0.0.1 --port 8000      this machine only, unless somebody says otherwise
    --api-key K                       or MINIPAGED_API_KEY: a command line can be read by everybody on the machine

Invariant: settings that exist are legal. (From level 08.)"""

import ipaddress
import os
import socket
from argparse import BooleanOptionalAction, Namespace
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..checks import check_integer, check_number

KEY_VARIABLE = "MINIPAGED_API_KEY"
VERSION = "0.1.0"  # of the package, as GET /version tells it


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class ServerSettings:
    """Frozen, checked at construction: ValueError names the field and the value."""

    host: str = option("127.0.0.1", "where to listen; 0.0.0.0 is every network this machine has")
    port: int = option(8000, "0: any that is free")
    api_key: str | None = option(None, f"asked for on all routes but /health; also from {KEY_VARIABLE}")
    served_model_name: str | None = option(None, "the model's name for clients; default: its folder's")
    ssl_keyfile: str | None = option(None, "with --ssl-certfile: TLS")
    ssl_certfile: str | None = option(None, "with --ssl-keyfile: TLS")
    allowed_origins: tuple[str, ...] = option((), "a web origin whose pages may call (CORS); repeatable; default: none")
    allowed_hosts: tuple[str, ...] = option((), "a name for this server where it serves this machine only; repeatable")
    max_waiting: int = option(1024, "answers that may wait for a seat; beyond them: 503")
    shutdown_timeout: float = option(30.0, "seconds that running answers have to end after SIGTERM")
    observatory: bool = option(True, "the page at /, which shows the engine at work")

    def __post_init__(self) -> None:
        check_integer("port", self.port, 0, 65535)
        check_integer("max_waiting", self.max_waiting, 0)
        check_number("shutdown_timeout", self.shutdown_timeout, 0)
        for name in ("host", "api_key", "served_model_name"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} must have at least one character")
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ValueError("ssl_keyfile and ssl_certfile go together")
        for name in ("ssl_keyfile", "ssl_certfile"):
            if (path := getattr(self, name)) is not None and not Path(path).is_file():
                raise ValueError(f"{name}: there is no file {path}")

    @property
    def scheme(self) -> str:
        return "http" if self.ssl_certfile is None else "https"

    @property
    def is_private(self) -> bool:
        """Whether only this machine is served."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def name_of(self, model: str) -> str:
        return self.served_model_name or Path(model).resolve().name


def add_server_flags(parser: Any) -> None:
    group = parser.add_argument_group("server", "without prompts, this level serves")
    for f in fields(ServerSettings):
        name, text = "--" + f.name.replace("_", "-"), f.metadata["help"]
        if f.type is bool:
            group.add_argument(name, action=BooleanOptionalAction, default=f.default, help=text)
            continue
        kind = type(f.default) if isinstance(f.default, int | float) else str
        action = "append" if isinstance(f.default, tuple) else "store"
        shown = f" (default {f.default})" if f.default not in (None, ()) else ""
        metavar = {int: "N", float: "F", str: "TEXT"}[kind]
        group.add_argument(name, type=kind, action=action, metavar=metavar, help=text + shown)


def read_settings(args: Namespace) -> ServerSettings:
    given = {f.name: value for f in fields(ServerSettings) if (value := getattr(args, f.name)) is not None}
    for name in ("allowed_origins", "allowed_hosts"):
        given[name] = tuple(given.get(name, ()))
    return ServerSettings(**{"api_key": os.environ.get(KEY_VARIABLE) or None, **given})


def bind(settings: ServerSettings) -> socket.socket:
    """Take the address, without listening yet. Raises ValueError if somebody has it."""
    try:
        [family, kind, protocol, _, address], *_ = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return take(socket.socket(family, kind, protocol), address)
    except OSError as error:
        raise ValueError(f"cannot listen at {settings.host} port {settings.port}: {error.strerror}") from error


def take(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
