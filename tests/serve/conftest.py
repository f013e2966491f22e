"""A browser, and a server for a capture that is too large for its page."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.pages import inputs_of, long_analysis
from tests.report.conftest import browser
from traceview.model.analysis import Analysis
from traceview.report.analysis import page as html_page
from traceview.serve.page import Server

__all__ = ["browser"]


@pytest.fixture(scope="package")
def analysis() -> Analysis:
    return long_analysis()


@pytest.fixture(scope="package")
def server(analysis: Analysis) -> Iterator[Server]:
    # With this budget the page holds bins and requests the rest from the server.
    patch = pytest.MonkeyPatch()
    patch.setattr(html_page, "LIVE_DETAIL", 1_200_000)
    with Server(inputs_of(analysis)) as running:
        patch.undo()
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
