"""What the README tells a newcomer to type works as it stands there, but for the address."""

import shutil
import subprocess
from pathlib import Path

import pytest

from .running import Running

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ADDRESS, MODEL = "http://127.0.0.1:8000", "smollm2-135m"


def block(first_words: str) -> str:
    """The indented lines from the one that begins so to the next that is not."""
    lines = README.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("    " + first_words))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("    "))
    return "\n".join(line.removeprefix("    ") for line in lines[start:end])


def test_curl_streams_an_answer(served: Running) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    command = block("curl").replace(ADDRESS, served.url)
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.startswith("data: {")
    assert result.stdout.endswith("data: [DONE]\n\n")


def test_the_openai_client_gets_one(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    code = block("from openai").replace(ADDRESS, served.url).replace(MODEL, served.front.name)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out
