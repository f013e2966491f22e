"""Messages of NCCL's calls: payloads written by hand into a real export, and groups of calls against a slow oracle."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import sample
from tests.made_trace import made_trace
from tests.ranks.test_collectives import COMMUNICATOR, as_json, blob, with_payloads
from traceview import analyze
from traceview.model.sizes import CALLS
from traceview.normalise.sizes import _messages_of_calls
from traceview.pipeline import open_trace


@pytest.mark.parametrize(("column", "payload"), [("binaryData", blob), ("jsonText", as_json)])
def test_messages_of_a_real_run_with_payloads(tmp_path: Path, column: str, payload: object) -> None:
    analysis = analyze(with_payloads(tmp_path, column, payload))  # type: ignore[arg-type]
    for device in analysis.devices:
        rows = {row.collective: row for row in device.tables["collectives"].rows}
        reduce = rows["all_reduce"]
        assert (reduce.count, reduce.message_bytes, reduce.group) == (73, 4096, f"{COMMUNICATOR:016x}")
        assert reduce.algorithm_bandwidth == pytest.approx(4096 / reduce.median_ns, abs=1e-6)
        assert (reduce.group_size, reduce.bus_bandwidth) == (None, None)
        # What a rank receives in an all-gather depends on the number of ranks, which no payload contains here.
        assert (rows["all_gather"].message_bytes, rows["broadcast"].bus_factor) == (None, 1)
    assert not any(note.id == "unknown_messages" for note in analysis.notes)


def test_without_payloads_a_note_says_how_to_export_them() -> None:
    trace = open_trace(sample("ddp2.sqlite"))
    (note,) = (note for note in trace.info.health if note.id == "unknown_messages")
    assert "--include-blobs" in note.text and note.affects == ("collectives",)
    (row, *_) = analyze(trace).devices[0].tables["collectives"].rows
    assert (row.collective, row.element_type, row.count, row.message_bytes) == ("all_reduce", "fp32", 73, None)


@given(
    st.lists(st.tuples(st.sampled_from(["call", "launch"]), st.sampled_from(["ncclAllReduce", "ncclSend", "ncclRecv"])))
)
def test_kernel_has_the_calls_since_the_previous_kernel(events: list[tuple[str, str]]) -> None:
    launches = [at for at, (kind, _) in enumerate(events) if kind == "launch"]
    trace = made_trace(
        [(100 * at, 100 * at + 9, "communication", 0, index) for index, at in enumerate(launches)],
        [(at, at + 1, "api", 0) for at in launches],
    )
    calls = [(at, 0, name, "a", at + 1) for at, (kind, name) in enumerate(events) if kind == "call"]
    frame = pl.DataFrame(calls, schema=dict(CALLS), orient="row")
    actual = {
        row["operation"]: (row["collective"], row["bytes"])
        for row in _messages_of_calls(frame, {"a": 2}, trace.operations, trace.api).iter_rows(named=True)
    }
    expected, waiting, last = {}, [], None
    for at, (kind, name) in enumerate(events):
        if kind == "call":
            waiting.append((name, at + 1))
        elif waiting:
            last = launches.index(at)
            expected[last], waiting = waiting, []
        elif last is not None:
            expected.pop(last, None)  # a group that launches a second kernel
    sizes = {}
    for operation, group in expected.items():
        sums = {name: sum(size for own, size in group if own == name) for name, _ in group}
        if len(sums) == 1:
            kinds = {"ncclAllReduce": "all_reduce", "ncclSend": "send", "ncclRecv": "receive"}
            sizes[operation] = (kinds[next(iter(sums))], sum(sums.values()))
        elif sums.keys() == {"ncclSend", "ncclRecv"}:
            sizes[operation] = ("send_receive", max(sums.values()))
    assert actual == sizes
