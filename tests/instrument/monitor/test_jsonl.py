from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from instrument.config.schema import Config, Monitor
from instrument.errors import ConfigError
from instrument.monitor import open_sinks
from instrument.monitor.jsonl import JsonLines


def records(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def steps(path: Path) -> list[int]:
    return [record["step"] for record in records(path)]


def write(path: Path, numbers: range, *, resumed_at: int | None = None) -> None:
    sink = JsonLines(path, resumed_at=resumed_at)
    for step in numbers:
        sink.write(step, {"loss": step / 2})
    sink.close()


def test_record_is_flushed_as_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run.jsonl"
    before = time.time()
    sink = open_sinks(Config(monitor=Monitor(jsonl=path)))
    sink.write(9, {"loss": 2.5, "perf/power_w": None, "perf/memory_peak_bytes": 1 << 40})
    (record,) = records(path)  # before it is closed
    sink.close()
    assert before - 1 <= record.pop("time") <= time.time() + 1
    assert record == {"step": 9, "loss": 2.5, "perf/power_w": None, "perf/memory_peak_bytes": 1 << 40}


def test_non_finite_loss_is_null_in_json(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "run.jsonl")
    sink.write(0, {"loss": math.nan, "norm": -math.inf, "time_ms": 3.0})
    sink.close()
    (record,) = records(tmp_path / "run.jsonl")
    assert (record["loss"], record["norm"], record["time_ms"]) == (None, None, 3.0)
    assert record["not_finite"] == {"loss": "nan", "norm": "-inf"}


def test_new_run_keeps_earlier_records(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for length in (1, 2, 3):
        write(path, range(length))
    assert steps(tmp_path / "run.1.jsonl") == [0]
    assert steps(tmp_path / "run.2.jsonl") == [0, 1]
    assert steps(path) == [0, 1, 2]


@pytest.mark.parametrize(
    ("before", "partial", "after"),
    [(5, b"", range(5, 8)), (10, b"", range(6, 12)), (3, b'{"step": 3, "lo', range(3, 5)), (0, b"", range(4, 6))],
    ids=["goes on", "repeats steps", "partial line", "no file"],
)
def test_resumed_run_has_each_step_once(tmp_path: Path, before: int, partial: bytes, after: range) -> None:
    path = tmp_path / "run.jsonl"
    if before:
        write(path, range(before))
        path.write_bytes(path.read_bytes() + partial)
    write(path, after, resumed_at=after.start)
    assert steps(path) == [*range(min(before, after.start)), *after]


def test_lines_of_other_programs_stay(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('# a note\n{"note": 1}\n[1]\n{"step": "x"}\n{"step": null}\n')
    write(path, range(2, 3), resumed_at=2)
    lines = path.read_text().splitlines()
    assert lines[:5] == ["# a note", '{"note": 1}', "[1]", '{"step": "x"}', '{"step": null}']
    assert json.loads(lines[5])["step"] == 2


def test_unwritable_path_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "file" / "run.jsonl", "File exists")):
        with pytest.raises(ConfigError) as refused:
            JsonLines(path)
        assert str(refused.value) == f"monitor.jsonl: cannot write to {path}: {reason}"


def test_special_files_are_written_directly() -> None:
    for resumed_at in (None, 3):
        sink = JsonLines(Path(os.devnull), resumed_at=resumed_at)
        sink.write(3, {})
        sink.close()
    assert not Path(os.devnull).is_file()


HEADER = """
import os, resource, signal, sys
from pathlib import Path
from instrument.monitor.jsonl import JsonLines
sink = JsonLines(Path(sys.argv[1]))
"""
# A limit on the size of files is a disk that is full in the middle of a line.
FULL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    for step in range(100):
        sink.write(step, {"loss": 0.1})
except OSError as failure:
    print(failure.errno or failure)
"""
KILLED = """
for step in range(20):
    sink.write(step, {"loss": 0.1})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("code", [FULL, KILLED], ids=["full disk", "killed"])
def test_full_disk_and_a_kill_leave_only_whole_lines(code: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    done = subprocess.run([sys.executable, "-c", HEADER + code, path], capture_output=True, text=True, check=False)
    if code == KILLED:
        assert (done.returncode, len(steps(path))) == (-signal.SIGKILL, 20)
    else:
        assert done.stdout.strip() == str(errno.EFBIG) or "bytes were written" in done.stdout
    assert len(steps(path)) > 10
    assert steps(path) == list(range(len(steps(path))))
