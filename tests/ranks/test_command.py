"""The command: output, errors, broken reports, lost workers, and real Dask clusters."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.captures import ROOT, sample
from tests.cli.command import HEARS_CTRL_C, Command
from tests.ranks.reports import ranks_of, result_of
from traceview.model.fleet import Fleet
from traceview.ranks.merge import merge
from traceview.report.fleet import to_json
from traceview.report.fleet.terminal import render, render_brief
from traceview.report.screen import MAX_LINES, PAGE_LINES, Screen

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1"}
# The first bytes of an nsys report, and an nsys that kills its caller: once, or every time.
REPORT = b"NVIDIA Tegra Profiler Report 2024@2@3"
KILLER = """#!/bin/sh
if [ "$1" = --version ]; then echo NVIDIA Nsight Systems version 2026.1.1.1; exit; fi
if [ ! -e {mark} ]; then {touch} kill -9 $PPID; exit; fi
cp {export} "$5"
"""
SLEEPER = """#!/bin/sh
if [ "$1" = --version ]; then echo version 2026.1.1; exit; fi
touch {mark}; exec sleep 60
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder with links to the reports of a run."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for path in ranks_of("slowhost"):
        (folder / path.name).symlink_to(path)
    return folder


def killer(folder: Path, *, once: bool) -> str:
    """Return an nsys that kills the worker that calls it, or else exports a sample."""
    program, mark = folder / "nsys", folder / "killed"
    touch = f"touch {mark};" if once else ""
    program.write_text(KILLER.format(mark=mark, touch=touch, export=sample("dual.sqlite")))
    program.chmod(0o755)
    return str(program)


def test_output_equals_a_run_in_this_process(traceview: Command, runs: Path, tmp_path: Path, slow_host: Fleet) -> None:
    out = tmp_path / "out.json"
    result = traceview("fleet", f"{runs}/rank*", f"{runs}/slowhost*", "--json", out, "--workers", 2)
    assert result.code == 2 and "rank*: no report found" in result.err and not out.exists()
    result = traceview("fleet", f"{runs}/slowhost*", "--json", out, "--workers", 2)
    assert (result.code, result.err) == (0, "")
    # Two processes give the same bytes as none.
    assert out.read_text(encoding="utf-8") == to_json(slow_host)
    page = runs / "fleet.overlap.html"
    assert result.out == render_brief(slow_host, Screen(100)) + f"Page: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    for columns in (80, 100, 160):
        text = render(slow_host, Screen(columns))
        assert all(len(line) <= columns for line in text.splitlines())
        assert ("caused" in text, " comm\n" in text) == (columns >= 100, columns == 160)
        cells = text.partition("slowest first\n")[2].partition("  own =")[0]
        assert not re.search(r"[nµm]s-?\d", cells) and " -" in cells  # a negative lag is the widest cell
    brief = render_brief(slow_host).splitlines()
    assert len(brief) <= MAX_LINES - PAGE_LINES and all(len(line) <= 80 for line in brief)
    assert "1 straggler of 4 ranks." in brief and "Waits between ranks" not in result.out
    assert traceview("fleet", f"{runs}/slowhost*", "--no-html", "-v").out == render(slow_host, Screen(100))
    assert "! slowhost_rank1" in result.out and render(slow_host, Screen(unicode=False)).isascii()


def test_broken_report_is_skipped(traceview: Command, runs: Path) -> None:
    (runs / "slowhost_rank0.sqlite.xz").unlink()
    (runs / "slowhost_rank0.sqlite").write_bytes(sample("dual.sqlite").read_bytes()[:50_000])
    (runs / "slowhost_rank9.sqlite").write_text("text", encoding="utf-8")
    result = traceview("fleet", runs, runs / "gone.sqlite", "--no-html", "--json", "-", "--workers", 1)
    document = json.loads(result.out)
    assert result.code == 3
    assert document["reports"] == [f"slowhost_rank{rank}.sqlite.xz" for rank in (1, 2, 3)]
    reasons = {skipped["file"]: skipped["reason"].split(" ")[0:2] for skipped in document["skipped"]}
    assert reasons == {
        "gone.sqlite": ["no", "such"],
        "slowhost_rank0.sqlite": ["cut", "off:"],
        "slowhost_rank9.sqlite": ["not", "an"],
    }
    assert [line.split(": ")[1] for line in result.err.splitlines()] == [f"skipped {name}" for name in sorted(reasons)]
    assert [document["ranks"][late["rank"]]["label"] for late in document["stragglers"]] == ["slowhost_rank1"]


def test_exit_codes(traceview: Command, tmp_path: Path) -> None:
    report = sample("ddp2.sqlite")
    result = traceview("fleet", report, "--no-html", "-q", "--fail-if", "straggler > 5%", "--workers", 1)
    assert result.code == 1 and result.out == ""
    assert result.err.startswith(
        "traceview: --fail-if straggler > 5%: straggler is 57.593% (10.346946 ms of 17.965771 ms) on ddp2 · GPU 0"
    )
    (tmp_path / "a.sqlite").write_bytes(b"")
    (tmp_path / "b.sqlite").write_bytes(b"")
    result = traceview("fleet", tmp_path, "--workers", 1)
    assert result.code == 2 and {path.name for path in tmp_path.iterdir()} == {"a.sqlite", "b.sqlite"}
    assert result.err.startswith("traceview: error: a.sqlite: the file is empty;")
    assert "(1 more report cannot be read either)" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "2", "--scheduler", "tcp://x:1"], "use one of them"),
        (["--html", "-"], "--html needs a file name"),
        (["--open", "--no-html"], "--open needs the page"),
        (["--fail-if", "speed > 5%"], "has no figure speed; the nearest is"),
        (["--scheduler", "nonsense"], "cannot connect to a scheduler"),
        (["--html", str(sample("ddp2.sqlite"))], "must be different files"),
        (["--json", "/nowhere/x.json"], "its folder does not exist"),
    ],
)
def test_invalid_options_are_one_line_errors(traceview: Command, arguments: list[str], words: str) -> None:
    result = traceview("fleet", sample("ddp2.sqlite"), *arguments)
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1


def test_scheduler_needs_distributed(traceview: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = traceview("fleet", sample("ddp2.sqlite"), "--no-html", "--scheduler", "tcp://127.0.0.1:1")
    assert result.code == 2 and "pip install 'traceview[dask]'" in result.err


@pytest.mark.parametrize("once", [True, False])
def test_dead_worker_is_replaced(traceview: Command, runs: Path, tmp_path: Path, once: bool) -> None:
    for rank in (2, 3):
        (runs / f"slowhost_rank{rank}.sqlite.xz").unlink()
    (runs / "slowhost_rank4.nsys-rep").write_bytes(REPORT)
    nsys = killer(tmp_path, once=once)
    result = traceview("fleet", runs, "--no-html", "--json", "-", "--workers", 2, "--nsys", nsys)
    document = json.loads(result.out)
    assert (tmp_path / "killed").exists() is once
    # The other reports are read in both cases; a report that kills its worker twice is given up.
    assert [rank["label"] for rank in document["ranks"]][:2] == ["slowhost_rank0", "slowhost_rank1"]
    assert (result.code, len(document["ranks"])) == ((0, 3) if once else (3, 2))
    assert [skipped["reason"][:36] for skipped in document["skipped"]] == (
        [] if once else ["the process that read it died twice,"]
    )


def test_interrupt_leaves_no_files_and_no_processes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "slowhost_rank4.nsys-rep").write_bytes(REPORT)
    slow = tmp_path / "nsys"
    slow.write_text(SLEEPER.format(mark=tmp_path / "started"))
    slow.chmod(0o755)
    command = [sys.executable, "-c", HEARS_CTRL_C, "fleet", str(runs), "--workers", "1", "--nsys", str(slow)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 300
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=300)
    assert (process.returncode, printed.strip()) == (130, "traceview: interrupted")
    assert not (runs / "fleet.overlap.html").exists()
    while is_group_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_group_alive(process.pid)


def is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def cluster(folder: Path, tls: Sequence[str] = ()) -> Iterator[str]:
    """Run a scheduler and two single-threaded workers; `tls` are Dask's options."""
    pytest.importorskip("distributed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    address = f"{'tls' if tls else 'tcp'}://127.0.0.1:{port}"
    scheduler = ["distributed.cli.dask_scheduler", "--host", f"{address.partition(':')[0]}://127.0.0.1"]
    scheduler += ["--port", str(port), "--no-dashboard", *tls]
    worker = ["distributed.cli.dask_worker", address, "--nthreads", "1", "--nworkers", "2", "--no-dashboard", *tls]
    with (folder / "dask.log").open("w") as log:
        started = [
            subprocess.Popen([sys.executable, "-m", *command], env=ENVIRONMENT, stdout=log, stderr=log, cwd=folder)
            for command in (scheduler, [*worker, "--local-directory", str(folder)])
        ]
        try:
            deadline = time.monotonic() + 300
            while (folder / "dask.log").read_text().count("Registered to:") < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            yield address
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(timeout=300)


TLS_VARIABLES = [f"DASK_DISTRIBUTED__COMM__TLS__{name}" for name in ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")]


def certificate(folder: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate and its key with openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    folder.mkdir()
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def on_cluster(out: Path, address: str, *arguments: object, tls: Sequence[Path] = ()) -> tuple[int, str]:
    """Read a sample on a cluster, with the authority, certificate and key `tls`; return the exit code and errors."""
    command = [sys.executable, "-m", "traceview", "fleet", sample("ddp2.sqlite"), "--no-html", "-q", "--json", out]
    ended = subprocess.run(
        [*map(str, command), "--scheduler", address, *map(str, arguments)],
        env=ENVIRONMENT | dict(zip(TLS_VARIABLES, map(str, tls), strict=False)),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    return ended.returncode, ended.stderr


def test_cluster_with_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "ours")
    other_cert, other_key = certificate(tmp_path / "another")
    out = tmp_path / "out.json"
    ours = ("--tls-ca-file", str(cert), "--tls-cert", str(cert), "--tls-key", str(key))
    with cluster(tmp_path, ours) as address:
        assert on_cluster(out, address, tls=(cert, cert, key)) == (0, "")
        assert json.loads(out.read_text())["reports"] == ["ddp2.sqlite"]
        for files, words in (
            ((other_cert, cert, key), "cannot connect to a scheduler"),
            ((cert, other_cert, key), "cannot be used together"),
            ((tmp_path / "gone.pem", cert, key), "cannot be used together"),
            ((), "TLS needs certificates"),
        ):
            code, printed = on_cluster(out, address, tls=files)
            assert (code, printed.count("\n")) == (2, 1) and words in printed, printed
    assert other_key.is_file()


def test_help_warns_about_the_scheduler(traceview: Command) -> None:
    assert "can run code on this machine" in " ".join(traceview("fleet", "--help-all").out.split())


def functions_sampled(address: str) -> list[str]:
    """Return every function in the profiles of the workers, which would grow if they contained reports."""
    distributed = pytest.importorskip("distributed")
    with distributed.Client(address, set_as_default=False) as client:
        waiting, functions = [client.profile()], []
        while waiting:
            node = waiting.pop()
            functions.append(node["identifier"])
            waiting.extend(node["children"].values())
    return functions


def test_cluster_gives_the_same_bytes_and_survives_a_lost_worker(runs: Path, tmp_path: Path) -> None:
    out, last = tmp_path / "out.json", runs / "slowhost_rank4.nsys-rep"
    last.write_bytes(REPORT)
    nsys = killer(tmp_path, once=True)
    command = [
        sys.executable,
        "-m",
        "traceview",
        "fleet",
        str(runs),
        "--no-html",
        "-q",
        "--json",
        str(out),
        "--nsys",
        nsys,
    ]
    with cluster(tmp_path) as address:
        ended = subprocess.run(
            [*command, "--scheduler", address], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        sampled = functions_sampled(address)
    assert not [name for name in sampled if "traceview" in name]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "killed").exists()
    here = [*ranks_of("slowhost"), sample("dual.sqlite")]
    names = [*(path.name for path in here[:-1]), last.name]
    assert out.read_text(encoding="utf-8") == to_json(merge(names, [result_of(path) for path in here]))
