"""The page runs only its own scripts, by a policy of hashes, and holds the names of a capture as text."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from importlib import resources
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from tests.pages import inputs_of
from tests.report.browser import PATIENCE, Opened, opened
from tests.report.hostile import IMAGE, SCRIPT, hostile_trace
from traceview.pipeline import analyze
from traceview.report.analysis.page import render
from traceview.report.assets import escaped_json, plain_script

COMMENTS = re.compile(r"/\*\*?.*?\*/", re.DOTALL)  # types in them are written import("...")
FORMULA = '=HYPERLINK("http://127.0.0.1:9/","a, b")\n+cmd'
# Ways in which text becomes HTML or code. Nothing of the page's own uses one.
WAYS_IN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
    r"|\beval\b|new Function|import\(|set(?:Timeout|Interval)\(\s*[\"'`]|javascript:|XMLHttpRequest|sendBeacon"
)
# Texts that a spreadsheet may read as formulas, and texts that it does not.
SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20"
FORMULAS = (
    *(f"{blank}{sign}1+1" for sign in SIGNS for blank in ("", " ", "\v", "\f", "\xa0", "\u200b", "\ufeff")),
    *("\ttext", "\rtext", "\ntext", "'=1", "="),
)
NO_FORMULAS = ("text", "a=b", " text", "1-1", "(=1)", '"=1', ".-", "é", "a;b", "a; b=1", "a\tb", "a;'b")
# Texts in which another cell begins: after a semicolon, a tab or a line end; and how they are written.
INNER_FORMULAS = {
    ";=1": ";'=1",
    "a;=1;b": "a;'=1;b",
    "a; \u200b=1": "a; \u200b'=1",
    "a;'=1": "a;''=1",
    ";;+1;@x": ";;'+1;'@x",
    "a\n=1": "a\n'=1",
    "a;\t=1": "a;\t'=1",
    **{f"{blank}{sign}1": f"'{blank}'{sign}1" for sign in SIGNS for blank in ("\t", "\n", "\r", "\r\n", " \n\t ")},
}


def hostile() -> str:
    """A made capture: real programs have no such names."""
    trace = hostile_trace()
    name = pl.Series("name", [FORMULA] * len(trace.ranges), dtype=pl.Enum([FORMULA]))
    return render(inputs_of(analyze(replace(trace, ranges=trace.ranges.with_columns(name)))))


@pytest.fixture(scope="module")
def html() -> str:
    return hostile()


@pytest.fixture(scope="module")
def page(browser: Browser, html: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, html, tmp_path_factory.mktemp("page")) as one:
        yield one


def policy(html: str) -> dict[str, list[str]]:
    [content] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    return {name: values for name, *values in (part.split() for part in unescape(content).split(";"))}


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@given(st.text(st.characters(codec=None)))
def test_escaped_json_is_safe_ascii(text: str) -> None:
    made = escaped_json({text: text})
    assert made.isascii() and not set("<>&") & set(made)
    sound = text.encode("utf-8", "replace").decode("utf-8")
    assert json.loads(made) == {sound: sound}


def test_page_is_ascii(html: str) -> None:
    assert html.isascii()


def test_policy_lists_exactly_the_page_scripts(html: str) -> None:
    found = policy(html)
    assert found["default-src"] == ["'none'"]
    assert found["base-uri"] == found["form-action"] == ["'none'"]
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", html, re.DOTALL)
    assert len(scripts) == 1 and digest(scripts[0]) in found["script-src"]
    assert all(source.startswith("'sha256-") for source in found["script-src"]) and len(found["script-src"]) == 2
    assert {digest(style) for style in styles} == set(found["style-src-elem"])
    # plotly.js writes style attributes; they can load nothing, because no other directive lets them.
    assert found["style-src-attr"] == ["'unsafe-inline'"]
    assert set(found) == {
        "default-src", "script-src", "style-src-elem", "style-src-attr", "img-src", "base-uri", "form-action"
    }  # fmt: skip
    assert found["img-src"] == ["data:", "blob:"]
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html) == []
    assert html.index("Content-Security-Policy") < html.index("<style") < html.index("<script")


def test_plotly_obeys_the_policy(page: Opened) -> None:
    """Charts, hover, keys and print cause no message in the console and no request."""
    for chart in page.page.locator(".chart").all():
        chart.hover()
        chart.press("End")
        chart.press("Enter")
    for button in page.page.locator(".figure-head").get_by_role("button", name="Table").all():
        button.click()
    page.page.pdf()
    page.settle()
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("window.owned") is None
    assert page.evaluate("document.body.querySelectorAll('img').length") == 0


def test_names_are_text_in_every_chart_and_table(page: Opened) -> None:
    for button in page.page.locator(".figure-head").get_by_role("button", name="Table").all():
        button.click()
    bars = page.page.locator("#bars")
    bars.locator("summary").click()
    assert bars.locator("tbody button").first.inner_text().startswith("=HYPERLINK(")
    assert str(bars.locator(".columns > button").first.get_attribute("aria-label")).startswith("=HYPERLINK(")
    copies = page.page.locator(".figure", has=page.page.get_by_role("heading", name="Bandwidth of copies by size"))
    copies.locator(".chart").press("Home")
    assert IMAGE in copies.locator(".said").inner_text()
    assert page.evaluate("document.body.querySelectorAll('img, iframe, object, embed, svg script').length") == 0
    assert page.evaluate("window.owned") is None and page.complaints == []


def test_csv_of_the_page_has_no_formula(page: Opened) -> None:
    with page.page.expect_download() as waiting:
        page.page.get_by_role("button", name="Save as CSV: NVTX ranges").click()
    assert re.fullmatch(r"[A-Za-z0-9_.-]+\.csv", waiting.value.suggested_filename)
    text = Path(waiting.value.path()).read_bytes().decode("utf-8-sig")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert {len(row) for row in rows} == {7}
    assert [row[0] for row in rows[1:]] == ["'" + FORMULA.replace("\n+", "\n'+")]


ELEMENT = "document.body.append(Object.assign(document.createElement('%s'), { %s }))"


RUNS_TEXT = (
    "new Function('window.owned = 1')()",
    "(0, eval)('window.owned = 1')",
    "setTimeout('window.owned = 1')",
    "document.body.setAttribute('onclick', 'window.owned = 1'), document.body.click()",
    ELEMENT % ("script", "textContent: 'window.owned = 1'"),
    ELEMENT % ("script", "src: 'data:text/javascript,owned=1'"),
    ELEMENT % ("iframe", "srcdoc: '<script>top.owned=1</script>'"),
)
SENDS = (
    "fetch('http://127.0.0.1:9/').catch(() => 0)",
    "new Image().src = 'http://127.0.0.1:9/pixel'",
    "document.body.style.backgroundImage = 'url(http://127.0.0.1:9/pixel)'",
    "new WebSocket('ws://127.0.0.1:9/')",
    ELEMENT % ("link", "rel: 'stylesheet', href: 'http://127.0.0.1:9/'"),
)


def test_text_never_runs_and_nothing_leaves_the_page(page: Opened) -> None:
    for attempt in (*RUNS_TEXT, *SENDS):
        page.complaints.clear()
        # In a task of its own: what the debugger runs directly is above the policy.
        caught = "catch (error) { window.refused = error.name }"
        page.evaluate(f"() => {{ delete window.refused; setTimeout(() => {{ try {{ {attempt} }} {caught} }}) }}")
        for _ in range(PATIENCE // 20):
            if page.evaluate("window.refused") == "EvalError" or any(
                "Content Security" in one for one in page.complaints
            ):
                break
            page.page.wait_for_timeout(20)
        else:
            pytest.fail(f"not refused: {attempt}")
        page.settle()  # late messages count for this attempt
        assert page.evaluate("window.owned") is None, attempt


def test_formulas_are_escaped(browser: Browser) -> None:
    module = resources.files("traceview.report.assets").joinpath("core/export.js").read_text(encoding="utf-8")
    script = plain_script(module)
    page = browser.new_page()
    cells = page.evaluate(
        f"(values) => {{ {script}; return values.map(csvCell); }}", [*FORMULAS, *NO_FORMULAS, *INNER_FORMULAS, -3]
    )
    page.close()
    [*written, number] = [next(csv.reader(io.StringIO(cell, newline="")), [""])[0] for cell in cells]
    assert written == [*("'" + text for text in FORMULAS), *NO_FORMULAS, *INNER_FORMULAS.values()] and number == "-3"


def test_scripts_create_no_html_from_text() -> None:
    scripts = list(Path(str(resources.files("traceview.report.assets"))).rglob("*.js"))
    assert len(scripts) > 15
    found = {path.name: WAYS_IN.findall(COMMENTS.sub("", path.read_text(encoding="utf-8"))) for path in scripts}
    assert found == {path.name: [] for path in scripts}


def test_capture_text_never_becomes_markup(html: str) -> None:
    for text in (SCRIPT, IMAGE, 'HYPERLINK("http', "<!--"):
        assert text not in html
    markup = re.sub(r"<script.*?</script>|<style.*?</style>", "", html, flags=re.DOTALL)
    assert "onerror" not in markup.replace(f"<title>{markup.split('<title>')[1].split('</title>')[0]}", "")
    assert re.findall(r"<[^>]*\son\w+=", markup) == []
