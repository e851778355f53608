"""The page in a real Chromium: a request appears, its blocks grow and go, the answer is streamed; on a phone, in the
dark, by keyboard. Where no Chromium is found these are skipped: install one, or name it in MINIPAGED_TEST_BROWSER."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import thread_llm
from .running import Running, running
from .watching import is_empty, wait_for

playwright = pytest.importorskip("playwright.sync_api", reason="playwright comes with the extra named dev")
NAMES = ("chromium", "chromium-browser", "google-chrome")
FOUND = os.environ.get("MINIPAGED_TEST_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(FOUND is None, reason="no Chromium here: name one in MINIPAGED_TEST_BROWSER")
PHONE = {"width": 360, "height": 740}
SECONDS = 10_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=FOUND, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, served: Running) -> Iterator[Any]:
    """Open, live, and without a word on the console until the end."""
    page, said = browser.new_page(viewport={"width": 1100, "height": 900}), list[str]()
    page.set_default_timeout(SECONDS)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith(served.url) else None)
    page.goto(served.url + "/")
    page.get_by_text("live", exact=True).wait_for()
    yield page
    page.close()
    assert said == []
    wait_for(lambda: is_empty(served.llm))


def pool(page: Any) -> str:
    """What a screen reader hears of the memory."""
    label = page.locator("#pool-0").get_attribute("aria-label", timeout=SECONDS)
    assert label is not None
    return str(label)


def test_a_question_is_answered_and_its_blocks_grow_and_go(page: Any, served: Running) -> None:
    assert page.locator("#model").inner_text().startswith("tiny: 64 blocks")
    served.llm.pause()  # else it is over before a person could look
    page.locator("#prompt").fill("Tell me")
    page.keyboard.press("Enter")
    page.locator("#requests").get_by_text("waiting").wait_for()
    served.llm.go_on()
    page.locator("#requests").get_by_text("writing").first.wait_for()
    wait_for(lambda: page.evaluate("[...replicas.values()].some(look => look.blocks.includes('u'))"))
    wait_for(lambda: page.evaluate("document.getElementById('answer').textContent.length > 0"))
    page.get_by_text("Nobody is here.").wait_for()
    wait_for(lambda: page.evaluate("![...replicas.values()].some(look => look.blocks.includes('u'))"))
    assert "first word after" in page.locator("#timing").inner_text()
    assert page.locator("#send").is_enabled()
    wait_for(lambda: page.evaluate("document.getElementById('rate').textContent === '0'"))
    assert re.search(r"of 64 blocks \d+ used by one", pool(page))
    assert "steps" in page.locator("#steps").get_attribute("aria-label")


def test_escape_stops_an_answer_and_frees_its_blocks(page: Any, served: Running) -> None:
    served.llm.pause()
    page.locator("#prompt").fill("Tell me")
    page.keyboard.press("Enter")
    wait_for(lambda: served.llm.stats().num_waiting == 1)
    page.keyboard.press("Escape")
    page.get_by_text("[stopped]").wait_for()
    wait_for(lambda: is_empty(served.llm))
    served.llm.go_on()


def test_with_a_key_the_browser_asks_once_and_all_of_the_page_works(browser: Any, folder: Path) -> None:
    with running(lambda: thread_llm(folder), api_key="k") as server:
        stranger = browser.new_page(http_credentials={"username": "me", "password": "wrong"})
        assert stranger.goto(server.url + "/").status == 401
        stranger.close()
        page = browser.new_page(http_credentials={"username": "me", "password": "k"})
        page.goto(server.url + "/")
        page.get_by_text("live", exact=True).wait_for(timeout=SECONDS)
        page.locator("#prompt").fill("Tell me")
        page.keyboard.press("Enter")
        wait_for(lambda: bool(page.locator("#answer").inner_text()))
        page.close()
        wait_for(lambda: is_empty(server.llm))


def test_everything_can_be_reached_by_keyboard(page: Any) -> None:
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert [name for name in reached if name in ("prompt", "send", "answer", "SUMMARY")] == [
        "prompt",
        "send",
        "answer",
        "SUMMARY",
    ]


def test_on_a_phone_nothing_sticks_out(page: Any) -> None:
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_in_dark(page: Any, scheme: str, tmp_path: Path) -> None:
    """Contrast of at least 4.5 to 1, as WCAG asks of text."""
    page.emulate_media(color_scheme=scheme)
    colors = page.evaluate(
        "['--ink', '--dim', '--page', '--card'].map(name => getComputedStyle(document.documentElement)"
        ".getPropertyValue(name).trim())"
    )
    ink, dim, *grounds = [luminance(color) for color in colors]
    for ground in grounds:
        for text in (ink, dim):
            light, dark = max(text, ground), min(text, ground)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (scheme, colors)


def luminance(color: str) -> float:
    """Of #rrggbb."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
