"""No report, page, export or redacted copy holds a path of the machine; stacks with absolute paths in real captures."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.captures import sample
from tests.cli.command import Command
from traceview.captures.export import FORMATS
from traceview.pipeline import analyze
from traceview.read.payloads import STACK_DOMAIN

HOME = "/home/secretuser/projects/run7"
INSTALLED = "/home/secretuser/venv/lib/python3.11/site-packages/fancy/io/reader.py"
STANDARD = "/home/secretuser/.pyenv/versions/3.11.9/lib/python3.11/json/encoder.py"
FRAMES = [
    (f"{HOME}/train.py", 12, "main"),
    (f"{HOME}/tools/log.py", 30, "write"),
    (INSTALLED, 3, "read"),
    (STANDARD, 7, "encode"),
    ("C:\\Users\\secretuser\\elsewhere\\util.py", 9, "helper"),
]
STACKS = [[0], [0, 1], [0, 1, 3], [0, 2], [0, 4]]  # the outermost first
PRIVATE = re.compile(rb"secretuser|site-packages|/home/|\.pyenv|[A-Z]:\\\\?Users", re.IGNORECASE)
PACKED = re.compile(rb'<script type="application/octet-stream"[^>]*>([A-Za-z0-9+/=]+)</script>')


def torch_trace(folder: Path) -> Path:
    """Return a real trace of torch.profiler, to which calls of Python functions are added."""
    trace = json.loads(gzip.decompress(sample("torch_profiler/graph.json.gz").read_bytes()))
    calls = [event for event in trace["traceEvents"] if event.get("cat") == "cuda_runtime"]
    thread = {key: calls[0][key] for key in ("pid", "tid")}
    begin = min(float(call["ts"]) for call in calls)
    end = max(float(call["ts"]) for call in calls)
    step = (end - begin) / 400
    for place in range(400):
        for depth, frame in enumerate(STACKS[place % len(STACKS)]):
            path, line, function = FRAMES[frame]
            times = {"ts": begin + place * step + depth * 0.001, "dur": step * (0.9 - depth / 10)}
            name = f"{path}({line}): {function}"
            trace["traceEvents"].append({"ph": "X", "cat": "python_function", "name": name, **thread, **times})
    path = folder / "trace.json"
    path.write_text(json.dumps(trace))
    return path


def nsys_export(folder: Path) -> Path:
    """Return a real export of nsys, to which Python samples are added as newer versions write them."""
    path = folder / "capture.sqlite"
    shutil.copy(sample("trainer/serial.sqlite"), path)
    path.chmod(0o644)
    with sqlite3.connect(path) as export:
        [(begin, end)] = export.execute("SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL")
        [(thread,)] = export.execute("SELECT min(globalTid) FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        [(first,)] = export.execute("SELECT max(id) + 1 FROM StringIds")
        texts = [text for file, _, function in FRAMES for text in (function, file)]
        export.executemany("INSERT INTO StringIds VALUES (?, ?)", [(first + at, text) for at, text in enumerate(texts)])
        export.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData BLOB")
        columns = "INSERT INTO NVTX_EVENTS (start, eventType, category, text, globalTid, domainId, binaryData) VALUES "
        export.execute(f"{columns} (0, 75, NULL, ?, ?, 77, NULL)", (STACK_DOMAIN, thread))
        for place, moment in enumerate(range(begin, end, 1_000_000)):
            stack = STACKS[place % len(STACKS)][::-1]
            words = [word for frame in stack for word in (first + 2 * frame, first + 2 * frame + 1, FRAMES[frame][1])]
            blob = struct.pack("<II", 1, 1) + struct.pack(f"<{len(words) + 1}Q", len(stack), *words)
            export.execute(f"{columns} (?, 34, 1, NULL, ?, 77, ?)", (moment, thread, blob))
    return path


CAPTURES: list[Callable[[Path], Path]] = [torch_trace, nsys_export]


def content(path: Path) -> bytes:
    """Return the texts of a file: packed parts of a page are unpacked, tables decoded."""
    data = path.read_bytes()
    if path.suffix == ".parquet":
        return pl.read_parquet(path).write_csv().encode()
    if path.suffix == ".html":
        data += b"".join(zlib.decompress(base64.b64decode(packed)) for packed in PACKED.findall(data))
    return data


@pytest.mark.parametrize("make", CAPTURES, ids=lambda make: make.__name__)
def test_no_private_path_in_any_output(make: Callable[[Path], Path], tmp_path: Path, traceview: Command) -> None:
    capture = make(tmp_path)
    assert PRIVATE.search(capture.read_bytes())
    files = {frame for frame in analyze(capture).trace.evidence.frames["file"].to_list() if frame}
    for file in ("train.py", "tools/log.py", "fancy/io/reader.py", "json/encoder.py", "elsewhere/util.py"):
        assert any(shown.endswith(file) and shown.count("/") <= 2 for shown in files), (file, files)
    out = tmp_path / "out"
    out.mkdir()
    commands = [
        ["analyze", capture, "--html", out / "page.html", "--json", out / "all.json", "--whole"],
        [
            "compare",
            capture,
            capture,
            "--json",
            out / "c.json",
            "--markdown",
            out / "c.md",
        ],
        ["whatif", capture, "--html", out / "whatif.html"],
        ["info", capture],
        ["redact", capture, out / "redacted.sqlite"],
        ["redact", capture, out / "hashed.sqlite", "--names", "hash"],
        *(
            ["export", capture, "--format", name, "-o", out / f"export{suffix}", "-q"]
            for name, suffix in FORMATS.items()
        ),
    ]
    for command in commands:
        done = traceview(*command)
        assert done.code == 0, done
        printed = (done.out + done.err).replace(str(tmp_path), "")
        assert not PRIVATE.search(printed.encode()), printed
    written = [path for path in out.rglob("*") if path.is_file()]
    assert len(written) > len(commands)
    for path in written:
        match = PRIVATE.search(content(path))
        assert match is None, (path.name, match)
    assert b"train.py:12" in content(out / "page.html") and b"tools/log.py" in (out / "all.json").read_bytes()


def test_redacted_copies_have_no_stacks(tmp_path: Path, traceview: Command) -> None:
    """Samples of nsys are dropped. Functions of torch.profiler are names: they stay without folders, or are hashed."""
    sampled, traced = nsys_export(tmp_path), torch_trace(tmp_path)
    for name, capture, options in (("a", sampled, ()), ("b", traced, ()), ("c", traced, ("--names", "hash"))):
        assert traceview("redact", capture, tmp_path / f"{name}.sqlite", *options).code == 0
    assert analyze(sampled).tables["lines"].rows
    copy = analyze(tmp_path / "a.sqlite")
    assert copy.tables["lines"].rows == () and copy.trace.evidence.frames.is_empty()
    texts = [(tmp_path / f"{name}.sqlite").read_bytes() for name in "abc"]
    assert [b"tools/log.py" in text for text in texts] == [False, True, False]
