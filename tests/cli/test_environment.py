"""Where a command runs: closed streams, few open files, a deleted folder, long names."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import SAMPLES, sample
from tests.cli.command import Result

ROOT = Path(__file__).parents[2]
SERIAL = SAMPLES / "serial.sqlite"


def in_a_shell(before: str, *arguments: object, redirected: str = "") -> Result:
    """Run a command in a shell, after the commands `before`."""
    command = shlex.join([sys.executable, "-m", "traceview", *map(str, arguments)])
    ended = subprocess.run(
        ["bash", "-c", f"export PYTHONPATH={shlex.quote(str(ROOT))}; {before} {command} {redirected}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    return Result(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize(
    ("redirected", "code"), [(">&-", 2), ("2>&-", 0), (">&- 2>&-", 2), ("<&-", 0), ("<&- >&- 2>&-", 2)]
)
def test_closed_streams(tmp_path: Path, redirected: str, code: int) -> None:
    """Without standard output a result is lost: exit code 2, because 1 means a failed condition. Files are written."""
    out = tmp_path / "out.json"
    ended = in_a_shell("", "analyze", SERIAL, "--no-html", "--json", out, redirected=redirected)
    assert (ended.code, out.read_text()[:1]) == (code, "{")
    assert ended.err == (
        "traceview: error: cannot write standard output (Bad file descriptor)\n" if redirected == ">&-" else ""
    )
    assert ("ms" in ended.out) == (">&-" not in redirected.split())


def test_closed_streams_of_messages() -> None:
    """Help and errors end with exit code 2 too."""
    assert in_a_shell("", "--help", redirected=">&-").code == 2
    assert in_a_shell("", "--version", redirected=">&-").code == 2
    assert in_a_shell("", "info", "none.sqlite", redirected="2>&-") == Result(2, "", "")
    assert in_a_shell("", "analyze", SERIAL, "--no-html", "-q", "--fail-if", "idle > 0%", redirected="2>&-").code == 1


@pytest.mark.parametrize("files", [6, 10, 20, 63])
def test_few_open_files(tmp_path: Path, files: int) -> None:
    ended = in_a_shell(f"ulimit -n {files};", "export", SERIAL, "--format", "parquet", "-o", tmp_path / "tables")
    line = f"traceview: error: at most {files} files may be open at once, too few; allow more: ulimit -n 1024\n"
    assert ended == Result(2, "", line)
    assert in_a_shell(f"ulimit -Sn {files};", "info", SERIAL).code == 0


def test_deleted_folder(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    ended = in_a_shell(f"cd {shlex.quote(str(gone))}; rmdir {shlex.quote(str(gone))};", "info", SERIAL)
    line = "traceview: error: the working folder does not exist any more; change to another one\n"
    assert ended == Result(2, "", line)


def test_long_names(tmp_path: Path) -> None:
    """A name may have as many bytes as the file system allows; SQLite's limit on a path is named."""
    longest = tmp_path / f"{'n' * 248}.sqlite"
    shutil.copy(sample("serial.sqlite"), longest)
    assert in_a_shell("", "analyze", longest, "-q", "--no-html") == Result(0, "", "")
    deep = tmp_path / ("d" * 200) / ("e" * 200) / ("f" * 100)
    deep.mkdir(parents=True)
    shutil.copy(sample("serial.sqlite"), deep / "r.sqlite")
    for begin, name in (("", deep / "r.sqlite"), (f"cd {shlex.quote(str(deep))};", "r.sqlite")):
        ended = in_a_shell(begin, "analyze", name, "-q", "--no-html")
        line = "r.sqlite: its path has more than 504 bytes, which SQLite cannot open; move the file"
        assert ended == Result(2, "", f"traceview: error: {line}\n")
