"""Run SQL queries on a trace with Perfetto's trace_processor."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("TRACEVIEW_TRACE_PROCESSOR") or HERE.parent.parent / ".trace-processor")
CHUNK = 1 << 24
FINALIZE, APPEND, QUERY = 2, 1, 3  # TraceProcessorRpc.TraceProcessorMethod
Row = dict[str, Any]


def query_rows(trace: Path, queries: Sequence[str]) -> list[list[Row]]:
    """Load a trace and return the rows of each query. Skips the test if trace_processor is missing."""
    if not (FOLDER / "trace_processor.wasm").is_file():
        pytest.skip(f"needs trace_processor in {FOLDER} (scripts/need-trace-processor unpacks it)")
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, which runs trace_processor's WebAssembly")
    done = subprocess.run(
        [node, str(HERE / "trace_processor.cjs"), str(FOLDER)],
        input=_requests(trace, queries),
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return _answers(done.stdout, len(queries))


def _protos() -> Any:
    protos = pytest.importorskip("perfetto.trace_processor.protos")
    platform = pytest.importorskip("perfetto.trace_processor.platform")
    return protos.ProtoFactory(platform.PlatformDelegate())


def _message(name: str) -> Any:
    from google.protobuf import message_factory

    pool = _protos().descriptor_pool
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"perfetto.protos.{name}"))


def _requests(trace: Path, queries: Sequence[str]) -> bytes:
    stream = _message("TraceProcessorRpcStream")()
    data = trace.read_bytes()
    for at in range(0, len(data), CHUNK):
        stream.msg.add(request=APPEND, append_trace_data=data[at : at + CHUNK])
    stream.msg.add(request=FINALIZE)
    for query in queries:
        stream.msg.add(request=QUERY).query_args.sql_query = query
    for number, message in enumerate(stream.msg):
        message.seq = number
    return bytes(stream.SerializeToString())


def _answers(reply: bytes, count: int) -> list[list[Row]]:
    from perfetto.trace_processor.api import TraceProcessor

    stream = _message("TraceProcessorRpcStream")()
    stream.ParseFromString(reply)
    answers: list[list[Row]] = []
    names: list[str] = []
    batches: list[Any] = []
    for message in stream.msg:
        assert not message.fatal_error, message.fatal_error
        assert not message.append_result.error, message.append_result.error
        if message.response != QUERY:
            continue
        result = message.query_result
        assert not result.error, result.error
        names = list(result.column_names) or names
        batches.extend(result.batch)
        # A long answer comes in several messages; only the first has column names.
        if batches and batches[-1].is_last_batch:
            rows = TraceProcessor.QueryResultIterator(names, batches)
            answers.append([{name: getattr(row, name) for name in names} for row in rows])
            batches = []
    assert len(answers) == count, f"{len(answers)} answers to {count} queries"
    return answers
