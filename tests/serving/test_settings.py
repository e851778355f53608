"""Settings that exist are legal, and an address that is taken is said so before anything is loaded."""

import argparse
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minipaged.serving.server import show
from minipaged.serving.settings import KEY_VARIABLE, VERSION, ServerSettings, add_server_flags, bind, read_settings


def read(*words: str) -> ServerSettings:
    parser = argparse.ArgumentParser()
    add_server_flags(parser)
    return read_settings(parser.parse_args(words))


def test_by_default_nobody_else_can_reach_it_and_no_page_may_call() -> None:
    settings = read()
    assert (settings.host, settings.port, settings.scheme) == ("127.0.0.1", 8000, "http")
    assert (settings.api_key, settings.allowed_origins, settings.observatory) == (None, (), True)


def test_every_setting_is_a_flag(tmp_path: Any) -> None:
    key = tmp_path / "key.pem"
    key.write_text("")
    words = "--host ::1 --port 5 --api-key k --served-model-name m --allowed-origins a --max-waiting 3"
    more = f"--allowed-origins b --shutdown-timeout 0.5 --no-observatory --ssl-keyfile {key} --ssl-certfile {key}"
    settings = read(*words.split(), *more.split())
    assert settings.allowed_origins == ("a", "b")
    assert (settings.shutdown_timeout, settings.observatory, settings.scheme) == (0.5, False, "https")


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "from there")
    assert read().api_key == "from there"
    assert read("--api-key", "from here").api_key == "from here"


@pytest.mark.parametrize(("name", "value"), [
    ("port", -1), ("port", 65536), ("host", ""), ("api_key", ""), ("served_model_name", ""), ("max_waiting", -1),
    ("shutdown_timeout", -1.0), ("shutdown_timeout", float("inf")), ("ssl_keyfile", "x"),
])  # fmt: skip
def test_what_is_illegal_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        ServerSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "expected"), [
    ("smollm2-135m", "smollm2-135m"), ("/models/tiny/", "tiny"), ("someone/their-model", "their-model"),
])  # fmt: skip
def test_a_model_is_called_as_its_folder_is(model: str, expected: str) -> None:
    assert ServerSettings().name_of(model) == expected
    assert ServerSettings(served_model_name="n").name_of(model) == "n"


def test_an_address_that_is_taken() -> None:
    with bind(ServerSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))  # taken, but nobody is there yet
        taken.listen()
        with pytest.raises(ValueError, match=str(port)):
            bind(ServerSettings(port=port))


def test_a_host_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"no\.such\.host"):
        bind(ServerSettings(host="no.such.host.invalid"))


@pytest.mark.parametrize(
    ("address", "expected"), [(("127.0.0.1", 80), "127.0.0.1:80"), (("::1", 80, 0, 0), "[::1]:80")]
)
def test_addresses_as_a_browser_reads_them(address: Any, expected: str) -> None:
    assert show(address) == expected


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
