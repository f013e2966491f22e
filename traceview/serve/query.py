"""The parameters of a request: each at most once, each within its bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from traceview.errors import RequestError
from traceview.report.timeline.marks import LONGEST_NAME

MAX_PARAMETERS = 20
MAX_NS = (1 << 53) - 1  # the largest whole number of JavaScript, in which the page counts
MAX_CORRELATION = (1 << 63) - 1
MAX_SHIFT = 52
MAX_ROWS = 1000
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")

Query = Mapping[str, str]


def parse_query(text: str) -> Query:
    """Return the parameters by name. Raises RequestError."""
    try:
        given = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise RequestError(f"the address has more than {MAX_PARAMETERS} parameters") from None
    query = dict(given)
    if len(query) < len(given):
        raise RequestError("a parameter is given twice")
    return query


def moment(query: Query, name: str) -> int:
    """Return a time in ns from the page's zero. Raises RequestError."""
    return whole_number(query, name, -MAX_NS, MAX_NS)


def whole_number(query: Query, name: str, least: int, most: int) -> int:
    """Return a whole number between two bounds. Raises RequestError."""
    text = _given(query, name)
    if not WHOLE_NUMBER.fullmatch(text):
        raise RequestError(f"{name}: a whole number is needed")
    if not least <= int(text) <= most:
        raise RequestError(f"{name}: must be between {least} and {most}")
    return int(text)


def searched_text(query: Query, name: str) -> str:
    """Return a text to search for, in lower case. Raises RequestError where it is longer than any name."""
    text = _given(query, name)
    if len(text) > LONGEST_NAME:
        raise RequestError(f"{name}: at most {LONGEST_NAME} characters")
    return text.strip().lower()


def row_numbers(query: Query, name: str, count: int) -> list[int]:
    """Return different numbers of rows below `count`. Raises RequestError."""
    texts = _given(query, name).split(",", MAX_ROWS)
    if len(texts) > MAX_ROWS:
        raise RequestError(f"{name}: at most {MAX_ROWS} rows")
    numbers = [whole_number({name: text}, name, 0, count - 1) for text in texts]
    if len(set(numbers)) < len(numbers):
        raise RequestError(f"{name}: a row is given twice")
    return numbers


def _given(query: Query, name: str) -> str:
    if name not in query:
        raise RequestError(f"{name}: is missing")
    return query[name]
