"""A headless browser, and the requests and messages of a page in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
# In a container there is neither a sandbox nor a GPU; the rest keeps the browser itself off the network.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
READY = "html[data-ready]"
PATIENCE = 300_000  # ms; a loaded machine must not fail a test


def executable() -> str | None:
    """Return the browser's path: TRACEVIEW_CHROMIUM, or the first known name on the PATH."""
    named = os.environ.get("TRACEVIEW_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Opened:
    """A drawn page, with its network requests and its messages in the console."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def view(self) -> tuple[float, float]:
        """Return the visible range, in ns from the page's zero."""
        first, last = self.page.evaluate("[traceview.view.from, traceview.view.to]")
        return first, last

    def settle(self) -> None:
        """Wait until the page has drawn all changes."""
        self.page.evaluate("async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }")

    def press(self, key: str) -> tuple[float, float]:
        self.page.keyboard.press(key)
        self.settle()
        return self.view()

    def reset(self) -> None:
        """Restore the state of the page after it was opened."""
        self.page.mouse.move(1, 1)
        self.evaluate("scrollTo(0, 0)")
        self.evaluate("document.activeElement.blur()")
        self.press("Escape")
        self.page.locator("[data-move=fit]").click()
        self.settle()
        self.page.wait_for_function("() => !traceview.view.calm")

    def marks(self) -> int:
        return int(self.page.evaluate("traceview.drawn.marks"))

    def evaluate(self, script: str, argument: object = None) -> Any:
        return self.page.evaluate(script, argument)


@contextmanager
def opened(
    browser: Browser,
    html: str,
    folder: Path,
    *,
    width: int = 1440,
    height: int = 900,
    dark: bool = False,
    folded: bool = False,
) -> Iterator[Opened]:
    """Write a page to disk, open it from there, wait until it has drawn, and unfold its parts unless `folded`."""
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE)
    result = Opened(context.new_page())
    result.watch()
    try:
        result.page.goto(path.as_uri())
        result.page.wait_for_selector(READY, state="attached")
        if not folded:
            result.evaluate(
                "document.querySelectorAll('main > section > details').forEach((one) => { one.open = true; })"
            )
        yield result
    finally:
        context.close()


def chart(page: Opened, heading: str) -> Locator:
    """Return the figure under a heading, after its chart is drawn."""
    figure = page.page.locator(".figure", has=page.page.get_by_role("heading", name=heading))
    stage = figure.locator(".chart")
    stage.scroll_into_view_if_needed()
    stage.and_(page.page.locator("[data-drawn]")).wait_for()
    return figure
