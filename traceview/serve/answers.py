"""An answer of a tool: the values that it takes from a document, at most MAX_BYTES, as text that is safe to read.

`from_capture` names the keys whose texts come from a capture. Control characters, and format characters such as those
that reverse a line or hide text, are replaced in every text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traceview.model.units import safe_text

MAX_BYTES = 4_000
MAX_TEXT = 1_000  # characters of one text
MIN_TEXT = 60
# Keys whose texts are words of traceview. The texts of all others are marked: they can hold a name from the capture.
OWN_KEYS = frozenset(
    (
        *("affects", "cause", "claims", "confidence", "device", "direction", "family", "id", "kind"),
        *("matched_by", "memory", "method", "part", "precision", "profiler", "severity", "source", "status", "table"),
        *("tensor_core", "verdict", "nsys_version", "schema_version"),
    )
)
NAMES_AS_KEYS = ("waits", "waits_for", "host_waits", "host_waits_for")  # objects whose keys are names

Row = Mapping[str, Any]
Answer = dict[str, Any]


def chosen(row: Row, *names: str) -> Answer:
    """Return some values of a row."""
    return {name: row[name] for name in names if name in row}


def matching(rows: Sequence[Row], text: str) -> list[Row]:
    """Return the rows in which a text contains `text`, in any case; all rows if it is empty."""
    wanted = text.casefold()
    return [row for row in rows if not wanted or any(wanted in str(value).casefold() for value in row.values())]


def fitted(answer: Answer, limit: int = MAX_BYTES) -> Answer:
    """Return an answer of at most `limit` bytes as JSON. Values that are null or empty are left out.

    Lists lose their last rows first, then texts their ends. `left_out` has the number of rows that each list lost, and
    `from_capture` the keys whose texts come from a capture.
    """
    answer = _without_empty(answer)
    if marked := sorted(set(_keys_of_names(answer))):
        answer["from_capture"] = marked
    while len(encoded(answer)) > limit and _drop_row(answer):
        pass
    longest, cut = MAX_TEXT, answer
    while len(encoded(cut)) > limit and longest > MIN_TEXT:
        longest //= 2
        cut = _cut_texts(answer, longest)
    return cut


def _keys_of_names(value: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of texts that are not traceview's words; a text in a list has the key of the list."""
    if isinstance(value, Mapping):
        if key in NAMES_AS_KEYS:
            yield key
        for name, inner in value.items():
            yield from _keys_of_names(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys_of_names(inner, key)
    elif isinstance(value, str) and key not in OWN_KEYS:
        yield key


def encoded(answer: Answer) -> str:
    """Return an answer as JSON in ASCII."""
    return json.dumps(answer, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _without_empty(value: Any) -> Any:
    """Return a value without null and empty values; zeros and false stay."""
    if isinstance(value, Mapping):
        kept = {safe_text(key): _without_empty(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner is not None and inner not in ("", [], {})}
    if isinstance(value, (list, tuple)):
        return [_without_empty(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return safe_text(value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…")


def _drop_row(answer: Answer) -> bool:
    """Remove the last row of the largest list of rows, and count it; return whether there was one."""
    lists = [(len(encoded({"": rows})), name, rows) for name, rows in _lists(answer) if len(rows) > 1]
    if not lists:
        return False
    _, name, rows = max(lists, key=lambda item: item[0])
    rows.pop()
    answer.setdefault("left_out", {})
    answer["left_out"][name] = answer["left_out"].get(name, 0) + 1
    return True


def _lists(value: Any, name: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield every list of objects with its key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _lists(inner, key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield name, value
        for inner in value:
            yield from _lists(inner, name)


def _cut_texts(value: Any, longest: int) -> Any:
    if isinstance(value, dict):
        return {key: _cut_texts(inner, longest) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut_texts(inner, longest) for inner in value]
    return f"{value[:longest]}…" if isinstance(value, str) and len(value) > longest else value


def first_rows(answer: Answer, name: str, rows: Sequence[Row], count: int) -> Answer:
    """Return an answer with the first rows of a list, and the number of rows that it leaves out."""
    left = {name: len(rows) - count} if len(rows) > count else {}
    return {**answer, name: list(rows[:count]), "left_out": {**answer.get("left_out", {}), **left}}
