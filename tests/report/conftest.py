"""A browser for each folder of tests, and the analyses of the samples, made once.

The browser closes after its folder: while it is open, its event loop counts as running, and `asyncio.run` fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.captures import analyzed, sample
from tests.report.browser import ARGUMENTS, executable
from traceview.model.analysis import Analysis


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = executable()
    if path is None:
        pytest.skip("needs Chromium (set TRACEVIEW_CHROMIUM, or run make browser)")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield found
        found.close()


@pytest.fixture(scope="session")
def analysis_of() -> Callable[[str], Analysis]:
    def analysis(name: str) -> Analysis:
        return analyzed(sample(f"{name}.sqlite"))

    return analysis
