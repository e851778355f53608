"""Any OpenAI-compatible server can be asked whether it keeps the contract.

    pytest tests/serving/contract                                       ours, in this process
    MINIPAGED_TEST_URL=http://host:8000 MINIPAGED_TEST_MODEL=name MINIPAGED_TEST_KEY=k pytest tests/serving/contract

Tests marked `ours` are about what OpenAI's API leaves open; elsewhere they are skipped."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

URL = os.environ.get("MINIPAGED_TEST_URL", "").rstrip("/")


@dataclass(frozen=True)
class Address:
    url: str
    model: str
    key: str


@pytest.fixture(scope="session")
def address(request: pytest.FixtureRequest) -> Address:
    if URL:
        return Address(URL, os.environ["MINIPAGED_TEST_MODEL"], os.environ.get("MINIPAGED_TEST_KEY", ""))
    return Address(request.getfixturevalue("served").url, "tiny", "")


@pytest.fixture(scope="session")
def http(address: Address) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
    with httpx.Client(base_url=address.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture
def ours() -> None:
    """What only this server promises."""
    if URL:
        pytest.skip("about this project's own server")
