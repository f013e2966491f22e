"""One page per test module, opened once and reset before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.pages import inputs_of
from tests.report.browser import Opened, opened
from traceview.model.analysis import Analysis
from traceview.report.analysis.page import render
from traceview.report.timeline.inputs import PageInputs


@pytest.fixture(scope="module")
def inputs(analysis: Analysis) -> PageInputs:
    """What the page of the module's `analysis` fixture shows."""
    return inputs_of(analysis)


@pytest.fixture(scope="module")
def shared_page(browser: Browser, inputs: PageInputs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The page of the module's `inputs` fixture."""
    with opened(browser, render(inputs), tmp_path_factory.mktemp("page")) as page:
        yield page


@pytest.fixture
def page(shared_page: Opened) -> Iterator[Opened]:
    """The page as it was when it opened; the browser reports no error during the test."""
    shared_page.reset()
    yield shared_page
    assert shared_page.complaints == []
