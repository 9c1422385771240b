"""The page in a real browser. Needs Playwright and Chromium: `make test-browser`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdover.server.auth import Keys
from holdover.server.options import ServerOptions
from tests.server.live import Live, running

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
# a system's browser if there is one, else the one that `playwright install` brought
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
READABLE = 4.5
# of a text and of what is behind it, in one go: the page is drawn anew each second
COLOURS = """selector => {
  const shown = document.createElement("div");
  shown.style.background = "Canvas";
  document.body.append(shown);
  const colours = [getComputedStyle(document.querySelector(selector)).color, getComputedStyle(shown).backgroundColor];
  shown.remove();
  return colours;
}"""


class Opened(NamedTuple):
    """A page, and what came of opening it.

    Attributes:
        page: the page.
        faults: errors and warnings of its script, its styles and its policy.
        asked: addresses that it asked for.
    """

    page: Any
    faults: list[str]
    asked: list[str]

    def check(self, server: Live) -> None:
        """Fail unless the page is quiet, asks only its own server and fits its window."""
        assert self.faults == []
        assert {url for url in self.asked if not url.startswith("data:")} == {
            f"{server.url}/",
            f"{server.url}/v1/status",
        }
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    def shows(self, selector: str, text: str | re.Pattern[str]) -> None:
        """Wait until an element has a text."""
        playwright.expect(self.page.locator(selector)).to_contain_text(text)


@contextmanager
def opened(server: Live, size: dict[str, int] = DESK, **context: Any) -> Iterator[Opened]:
    """The server's page in a window. While it is open, the engine can only be asked over HTTP."""
    with playwright.sync_playwright() as driver:
        # the sandbox needs rights that a container's root lacks; the page is our own
        browser = driver.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=False)
        page = browser.new_context(viewport=size, **context).new_page()
        found = Opened(page, [], [])
        page.on("pageerror", lambda error: found.faults.append(str(error)))
        page.on("request", lambda request: found.asked.append(request.url))
        page.on(
            "console",
            lambda said: found.faults.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.goto(server.url)
        yield found
        browser.close()


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_shows_the_cache_and_follows_it(server: Live, size: dict[str, int], scheme: str) -> None:
    text = "the cat sat on the mat " * 20
    with opened(server, size, color_scheme=scheme) as page:
        page.shows("#state", "ok; 0 running, 0 waiting")
        page.shows("#model", "tiny-gdn")
        page.shows("#count", "0")
        server.complete(text)
        page.shows("#tree", "0 hits")
        page.shows("#recent li:first-child", "0 of ")
        again = server.complete(text)
        report = again.model_extra["holdover"]["cache"]
        page.shows("#recent li:first-child", f"{report['state_depth']} of {report['prompt_tokens']} prompt tokens")
        page.shows("#recent li:first-child", report["reason"])
        page.shows("#tree", "1 hit")
        for number, name in enumerate(("native state slots", "KV rows")):
            page.shows(f".pool >> nth={number}", re.compile(f"{name}: 0 in use or pinned, [1-9]"))
        widths = page.page.evaluate("[...document.querySelectorAll('.bar .cached')].map(bar => bar.offsetWidth)")
        assert len(widths) == 2
        assert all(width > 0 for width in widths)
        page.check(server)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(server: Live, scheme: str) -> None:
    pin = server.http.post("/v1/cache/pins", json={"text": "the cat sat"}).raise_for_status().json()
    with opened(server, color_scheme=scheme) as page:
        page.shows(".pinned", "pinned")
        colours = {selector: page.page.evaluate(COLOURS, selector) for selector in (".pinned", "h1", ".node b")}
        # in the legend a colour is a mark beside the word, not behind it
        legend = page.page.evaluate("getComputedStyle(document.querySelector('.key.cached')).backgroundColor")
        page.check(server)
    server.http.delete(f"/v1/cache/pins/{pin['id']}").raise_for_status()
    assert legend == "rgba(0, 0, 0, 0)"
    for selector, (text, behind) in colours.items():
        assert contrast(text, behind) >= READABLE, selector
        assert (luminance(behind) < 0.1) is (scheme == "dark")


def test_a_deep_tree_fits_a_phone(model: Path) -> None:
    with running(model, state_budget=2**23, kv_budget=2**23) as server:
        # a fork below every fork, and below the last one a path without any
        prompt = [5]
        for turn in range(12):
            for branch in (6, 7):
                server.complete([*prompt, *[branch] * 8], max_tokens=1)
            prompt += [6] * 8
            server.complete([*prompt, *[8 + turn] * 4], max_tokens=1)
        for _ in range(12):
            prompt += [9] * 8
            server.complete(prompt, max_tokens=1)
        with opened(server, PHONE) as page:
            page.shows("#count", re.compile(r"^\d\d"))
            assert page.page.locator("#tree" + " li" * 8).count()
            page.check(server)
        server.check()


def test_a_key_is_asked_for_and_typed(model: Path) -> None:
    with running(model, ServerOptions(Keys(["mine"])), key="mine") as server, opened(server, PHONE) as page:
        page.shows("#state", "this server asks for a key")
        playwright.expect(page.page.locator("main")).to_be_hidden()
        # nothing was clicked: the field has the focus
        page.page.keyboard.type("wrong")
        page.page.keyboard.press("Enter")
        page.page.wait_for_event("response")
        playwright.expect(page.page.locator("main")).to_be_hidden()
        page.page.keyboard.press("Control+A")
        page.page.keyboard.type("mine")
        page.page.keyboard.press("Tab")
        page.page.keyboard.press("Enter")
        page.shows("#state", "ok; 0 running")
        playwright.expect(page.page.locator("main")).to_be_visible()
        playwright.expect(page.page.locator("#login")).to_be_hidden()


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as the browser writes them (WCAG 2.2)."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
