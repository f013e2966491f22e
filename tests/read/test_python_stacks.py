"""Python stacks of JSON and SQLite exports, against a decoder that reads word by word."""

from __future__ import annotations

import base64
import html
import json
import os
import sqlite3
import struct
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.profiling import profiled, run
from traceview.model.stacks import CallTree, node_levels
from traceview.normalise import normalise
from traceview.read import payloads, raw, read_capture
from traceview.read.payloads import STACK_DOMAIN, json_samples, stack_tables
from traceview.read.source import DecodedSize

Frame = tuple[int, int, int]
MARK = {"Type": 34, "Category": "1", "GlobalTid": str(5 << 24 | 9), "DomainId": "1"}
PROGRAM = """
import json, threading, time
def encode(): return json.dumps([{str(i): i for i in range(50)}] * 300, indent=1)
def deep(n): return encode() if n == 0 else deep(n - 1)
thread = threading.Thread(target=lambda: time.sleep(0.4)); thread.start()
end = time.time() + 0.5
while time.time() < end: deep(20); time.sleep(0.01)
"""


def payload(flags: int, frames: list[Frame], depth: int | None = None, upper: int = 0) -> bytes:
    """Return the payload of a sample; `upper` fills the upper halves of 32-bit numbers, as nsys 2023.4 does."""
    words = [(depth if depth is not None else len(frames)) + (upper << 32)]
    for function, file, line in frames:
        words += [function, file, line + (upper << 32)]
    return struct.pack("<II", flags, 1) + struct.pack(f"<{len(words)}Q", *words)


def slow_stack(blob: bytes) -> list[Frame]:
    depth = min(struct.unpack_from("<I", blob, 8)[0], (len(blob) - 16) // 24)
    words = [struct.unpack_from("<I", blob, 16 + 8 * at)[0] for at in range(3 * depth)]
    return [(words[3 * at], words[3 * at + 1], words[3 * at + 2]) for at in range(depth)]


def stacks_of(tables: dict[str, pl.DataFrame]) -> list[list[Frame]]:
    """Return the stack of each sample, the innermost frame first."""
    nodes, frames = tables[raw.PYTHON_STACKS].rows(), tables[raw.PYTHON_FRAMES].rows()
    stacks = []
    for node in tables[raw.PYTHON_SAMPLES]["stack"].to_list():
        stack = []
        while node >= 0:
            stack.append(frames[nodes[node][1]])
            node = nodes[node][0]
        stacks.append(stack)
    return stacks


def random_payloads(seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    blobs = []
    for _ in range(60):
        frames = [(int(a), int(b), int(c)) for a, b, c in rng.integers(0, 3, (int(rng.integers(1, 6)), 3))]
        blobs.append(payload(int(rng.choice([1, 3])), frames, upper=int(rng.integers(0, 2)) * 0x7F00))
    cut = payload(1, [(1, 2, 3)] * 4, depth=90)
    return [*blobs, cut, blobs[0]]


def write_json(path: Path, blobs: list[bytes]) -> None:
    lines = ['{"data":["a","b"]}', '{"Type":48,"TraceProcessEvent":{"startNs":"1"}}']
    for at, blob in enumerate(blobs):
        binary = [{"SchemaId": "4294967299", "Data": base64.b64encode(blob).decode()}]
        event = MARK | {"Timestamp": str(10 * at), "Payload": {"BinaryData": binary}}
        lines.append(json.dumps({"Type": 34, "NvtxEvent": event}, separators=(",", ":")))
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("seed", range(4))
def test_stacks_of_a_made_json_export(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "BATCH_ROWS", 3)
    blobs = random_payloads(seed)
    write_json(tmp_path / "made.json", blobs)
    tables = json_samples(tmp_path / "made.json")
    assert stacks_of(tables) == [slow_stack(blob) for blob in blobs]
    samples = tables[raw.PYTHON_SAMPLES]
    assert samples["start"].to_list() == [10 * at for at in range(len(blobs))]
    assert samples["holdsGil"].to_list() == [int(blob[0] == 3) for blob in blobs]
    nodes = tables[raw.PYTHON_STACKS]
    assert nodes.n_unique() == len(nodes) and tables[raw.PYTHON_FRAMES].n_unique() == len(tables[raw.PYTHON_FRAMES])


def test_payloads_of_another_form_are_left_out(tmp_path: Path) -> None:
    good = payload(1, [(1, 2, 3)])
    write_json(tmp_path / "made.json", [b"", b"x" * 40 + b"y", b"short", good, payload(1, [])])
    assert stacks_of(json_samples(tmp_path / "made.json")) == [[(1, 2, 3)], [(1, 2, 3)]][:1]
    assert stack_tables([], DecodedSize("none")) == {}


@pytest.mark.parametrize("as_text", [False, True])
def test_stacks_of_a_sqlite_export_with_blobs(as_text: bool, tmp_path: Path) -> None:
    """Hand-made: a table of nsys 2024.6, which declares the payload as text."""
    blobs = random_payloads(1)
    path = tmp_path / "blobs.sqlite"
    with sqlite3.connect(path) as export:
        export.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        names = ["main", "/home/secret/run/train.py", "/x/lib/python3.11/site-packages/torch/nn.py"]
        export.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(names)))
        export.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, category INTEGER, text TEXT, "
            "globalTid INTEGER, textId INTEGER, domainId INTEGER, binaryData TEXT)"
        )
        thread = 5 << 24 | 9
        export.execute(
            "INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, NULL, ?, ?, NULL, 1, NULL)", (STACK_DOMAIN, thread)
        )
        for at, blob in enumerate(blobs):
            value = base64.b64encode(blob).decode() if as_text else blob
            for domain in (1, 2):  # the other domain has marks with payloads too
                row = (10 * at, 34, 1, thread, domain, value)
                export.execute("INSERT INTO NVTX_EVENTS VALUES (?, NULL, ?, ?, NULL, ?, NULL, ?, ?)", row)
    capture = read_capture(path)
    assert stacks_of(dict(capture.tables)) == [slow_stack(blob) for blob in blobs]
    evidence = normalise(capture).evidence
    files = set(evidence.frames["file"].to_list())
    assert not any("secret" in name or name.startswith("/") for name in files)
    assert "torch/nn.py" in files


@pytest.mark.parametrize("seed", range(3))
def test_equal_stacks_are_one_node(seed: int) -> None:
    rng = np.random.default_rng(seed)
    depth = rng.integers(1, 5, 30)
    tree = CallTree.from_chains(rng.integers(0, 3, (int(depth.sum()), 3)), depth)
    nodes = pl.DataFrame({"parent": tree.parent, "frame": tree.frame})
    assert nodes.n_unique() == len(nodes)
    assert (node_levels(tree.parent)[tree.leaf] == depth - 1).all()
    assert (tree.parent < np.arange(len(tree.parent))).all() and node_levels(tree.parent).max() == depth.max() - 1


def test_real_python_samples(nsys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a program without a GPU: equal stacks from the report and from its JSON export."""
    script, report = tmp_path / "train.py", tmp_path / "run.nsys-rep"
    script.write_text(PROGRAM)
    options = ("--python-sampling=true", "--python-sampling-frequency=1000", "-t", "nvtx,osrt", "-s", "none")
    profiled(nsys, report, sys.executable, script, options=options)
    monkeypatch.setenv("PATH", f"{Path(nsys).parent}{os.pathsep}{os.environ['PATH']}")
    capture = read_capture(report)
    run(nsys, "export", "-t", "json", "-o", tmp_path / "run.json", report)
    lines = (tmp_path / "run.json").read_text(errors="replace").splitlines()
    strings = json.loads(lines[0])["data"]
    events = [json.loads(line)["NvtxEvent"] for line in lines if '"BinaryData"' in line]
    blobs = [base64.b64decode(event["Payload"]["BinaryData"][0]["Data"]) for event in events]
    assert len(blobs) > 50 and stacks_of(dict(capture.tables)) == [slow_stack(blob) for blob in blobs]
    evidence = normalise(capture).evidence
    python = evidence.samples.filter(pl.col("python_thread").is_not_null())
    assert len(python) == len(blobs) < len(evidence.samples)  # long system calls have native stacks
    names = {html.unescape(strings[frame[0]]) for blob in blobs for frame in slow_stack(blob)}
    used = {frame.function for stack in python["stack"].unique().to_list() for frame in evidence.stack(stack)}
    assert used == names
    own = evidence.frames.filter(~pl.col("library") & (pl.col("line") > 0))
    assert set(own["file"].to_list()) == {"train.py"} and {"encode", "deep", "<module>"} <= set(
        own["function"].to_list()
    )
    assert not evidence.frames["file"].str.starts_with("/").any()
    known = python.filter(pl.col("thread").is_not_null())
    assert len(known) > 50 and known["python_thread"].n_unique() == 1
