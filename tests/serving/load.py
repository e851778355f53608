"""Two hundred clients at once, a third of them rude: afterwards the server is as if nobody had been there.

    python -m tests.serving.load --url http://127.0.0.1:8000 --seconds 60        against a server that runs

    patient    reads its answer, whole or streamed, and looks at it     leaver    hangs up, at once or in the middle
    slow       reads a few bytes now and then                           rude      sends what is refused, or no HTTP

Invariant of all: an answer is a 200 that is whole, a 4xx, or a 503 that says when to come back."""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import httpx

PATH = "/v1/completions"
BAD: list[dict[str, Any]] = [
    {"prompt": "a", "max_tokens": 0},
    {"prompt": ""},
    {"prompt": [-1]},
    {"prompt": "a", "n": 10**9},
    {"prompt": "a", "logit_bias": {"-1": 1}},
    {"prompt": "a", "structured_outputs": {"regex": "((("}},
    {"model": "nobody", "prompt": "a"},
]


class Crowd:
    """Everybody, and what became of them."""

    def __init__(self, url: str, num_clients: int, seconds: float, seed: int):
        self.url, self.num_clients, self.seconds, self.seed = url, num_clients, seconds, seed
        self.seen: Counter[str] = Counter()
        self.failures: list[str] = []
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.AsyncClient(base_url=url, timeout=120, limits=limits)

    async def run(self) -> None:
        end = time.monotonic() + self.seconds
        async with self.http:
            await asyncio.gather(*(self.live(Random(f"{self.seed}/{i}"), end) for i in range(self.num_clients)))

    async def live(self, random: Random, end: float) -> None:
        characters = [self.patient, self.patient, self.streaming, self.streaming, self.leaver, self.slow, self.rude]
        await asyncio.sleep(random.random() * min(1.0, self.seconds / 4))
        while time.monotonic() < end:
            character: Callable[[Random], Awaitable[None]] = random.choice(characters)
            try:
                await character(random)
            except Exception as error:
                self.failures.append(f"{character.__name__}: {type(error).__name__}: {error}")
            await asyncio.sleep(random.expovariate(20))

    def wish(self, random: Random) -> dict[str, Any]:
        length, own = random.randrange(1, 60), random.random()
        body: dict[str, Any] = {"prompt": "x" * length + str(own), "max_tokens": random.randrange(1, 30)}
        body |= {"temperature": random.choice([0, 1]), "n": random.choice([1, 1, 1, 2]), "ignore_eos": True}
        return body | ({"logprobs": 3} if random.random() < 0.2 else {})

    def check(self, status: int, headers: httpx.Headers, kind: str) -> bool:
        self.seen[f"{kind} {status}"] += 1
        if status == 503 and "retry-after" in headers:
            return False
        if status != 200:
            self.failures.append(f"{kind}: status {status}")
        return status == 200

    async def patient(self, random: Random) -> None:
        body = self.wish(random)
        answer = await self.http.post(PATH, json=body)
        if self.check(answer.status_code, answer.headers, "patient"):
            number = answer.json()["usage"]["completion_tokens"]
            if number != body["n"] * body["max_tokens"]:
                self.failures.append(f"patient: {number} tokens for {body}")

    async def streaming(self, random: Random) -> None:
        async with self.http.stream("POST", PATH, json={**self.wish(random), "stream": True}) as answer:
            if self.check(answer.status_code, answer.headers, "streaming"):
                lines = [line async for line in answer.aiter_lines() if line]
                if lines[-1] != "data: [DONE]" or "error" in json.loads(lines[-2].removeprefix("data: ")):
                    self.failures.append(f"streaming: ends with {lines[-2:]}")

    async def leaver(self, random: Random) -> None:
        self.seen["leaver"] += 1
        body = {**self.wish(random), "max_tokens": 100, "stream": random.random() < 0.5}
        with suppress(TimeoutError):
            async with asyncio.timeout(random.random() * 0.2), self.http.stream("POST", PATH, json=body) as answer:
                async for _ in answer.aiter_lines():
                    if random.random() < 0.2:
                        return

    async def slow(self, random: Random) -> None:
        self.seen["slow"] += 1
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=64)
        try:
            await write(writer, json.dumps({**self.wish(random), "max_tokens": 60, "stream": True}).encode())
            for _ in range(random.randrange(2, 12)):
                await reader.read(16)
                await asyncio.sleep(random.random() * 0.1)
        finally:
            writer.close()

    async def rude(self, random: Random) -> None:
        if random.random() < 0.3:
            await self.babble(random)
            return
        answer = await self.http.post(PATH, json=random.choice(BAD))
        self.seen[f"rude {answer.status_code}"] += 1
        if answer.status_code not in (400, 404):
            self.failures.append(f"rude: status {answer.status_code}")

    async def babble(self, random: Random) -> None:
        self.seen["babble"] += 1
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with suppress(ConnectionError, TimeoutError):
            writer.write(random.randbytes(200))
            await writer.drain()
            async with asyncio.timeout(0.2):  # what is no request yet may become one: the server waits
                await reader.read(200)
        writer.close()


async def write(writer: asyncio.StreamWriter, body: bytes) -> None:
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": len(body)}
    lines = [f"POST {PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()


def metrics(url: str) -> dict[str, float]:
    """Without labels."""
    lines = [line for line in httpx.get(url + "/metrics").text.splitlines() if line and line[0] != "#"]
    pairs = (line.rpartition(" ") for line in lines)
    return {name.partition("{")[0].removeprefix("minipaged:"): float(value) for name, _, value in pairs}


def is_calm(url: str) -> bool:
    """Nobody runs or waits, and no block is held."""
    now = metrics(url)
    return now["num_requests_running"] == now["num_requests_waiting"] == now["kv_cache_usage_perc"] == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    crowd = Crowd(args.url, args.clients, args.seconds, args.seed)
    asyncio.run(crowd.run())
    print(dict(sorted(crowd.seen.items())))
    end = time.monotonic() + 10
    while not is_calm(args.url) and time.monotonic() < end:
        time.sleep(0.05)
    start = time.monotonic()
    fresh = httpx.post(args.url + PATH, json={"prompt": "a", "max_tokens": 1}, timeout=30)
    print(f"calm: {is_calm(args.url)}; a fresh request: {fresh.status_code} after {time.monotonic() - start:.3f} s")
    print("\n".join(crowd.failures[:20]) or "no failures", f"({len(crowd.failures)})")
    return int(bool(crowd.failures) or not is_calm(args.url) or fresh.status_code != 200)


if __name__ == "__main__":
    sys.exit(main())
