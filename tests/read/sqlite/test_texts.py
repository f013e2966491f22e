"""Tables with texts are the same whether their numbers are decoded or read by SQLite."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build_export import Nvtx, build_export
from tests.captures import ALL, sample, shared
from tests.read.complete_tables import complete_tables
from traceview.read import raw
from traceview.read.sqlite import decoder
from traceview.read.sqlite.reader import read_sqlite

NEVER = 1 << 40
TEXTS = st.one_of(
    st.none(), st.text("aä ", max_size=8), st.text("x", min_size=50, max_size=300), st.just(5), st.just(b"b")
)
NUMBERS = st.one_of(st.none(), st.integers(0, 3), st.integers(-(2**63), 2**63 - 1), st.just("no number"))


@pytest.fixture(autouse=True)
def every_table_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decoder, "MIN_TABLE_BYTES", 0)
    yield


def equals_sqlite_result(path: Path) -> bool:
    item = read_sqlite(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "MIN_TABLE_BYTES", NEVER)
        other = read_sqlite(path)
    expected = complete_tables(other)
    return item.problems == other.problems and all(
        frame.cast(expected[name].schema).equals(expected[name])
        and {column for column, kind in frame.schema.items() if kind != expected[name].schema[column]}
        <= raw.NARROW.get(name, {}).keys()
        for name, frame in complete_tables(item).items()
    )


@pytest.mark.parametrize("name", ["samples/dual.sqlite", *ALL])
def test_real_captures(name: str) -> None:
    assert equals_sqlite_result(sample("dual.sqlite") if name.startswith("samples") else shared(name))


@pytest.mark.parametrize("removed", [None, 1, 3, 6])
def test_texts_of_a_table_with_missing_rows(removed: int | None, tmp_path: Path) -> None:
    """Without one of its rows, the numbers of the others are not their positions."""
    path = build_export(tmp_path / "made.sqlite", nvtx=[Nvtx(text=text) for text in ("a", None, b"x", "b", None, "c")])
    with sqlite3.connect(path) as export:
        export.execute("DELETE FROM NVTX_EVENTS WHERE rowid = ?", (removed,))
    assert equals_sqlite_result(path)
    expected = ["a", None, None, "b", None, "c"]
    if removed is not None:
        del expected[removed - 1]
    capture = read_sqlite(path)
    assert capture.tables[raw.NVTX]["text"].to_list() == expected
    assert any("wrong type" in line for line in capture.problems) == (removed != 3)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(NUMBERS, TEXTS, NUMBERS), min_size=1, max_size=12), times=st.sampled_from([1, 60]))
def test_random_texts_between_numbers(rows: list[tuple[object, object, object]], times: int) -> None:
    nvtx = [Nvtx(end=end, text=text, domain=domain) for end, text, domain in rows] * times  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        assert equals_sqlite_result(build_export(Path(folder) / "made.sqlite", nvtx=nvtx))
