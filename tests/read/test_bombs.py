"""Small databases that decode to gigabytes: every command that reads a capture refuses them with one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import click
import pytest

from tests.build_export import Call, Kernel, Nvtx, build_export
from tests.fuzz.test_hostile import interior, run
from tests.read.shared_pages import page_size
from traceview.cli import cli
from traceview.mcp.agents import Tools
from traceview.mcp.captures import Captures
from traceview.read.source import MAX_DECODED

MEGABYTE = 1 << 20
LIMIT, MEMORY = "50MB", 3 << 30
# What follows the name of a command that reads a capture. A new command needs an entry here, or in OTHER_CAPTURES.
ARGUMENTS: dict[str, Sequence[str]] = {
    "analyze": ("BOMB", "--no-html"),
    "compare": ("BOMB", "BOMB"),
    "export": ("BOMB", "--format", "parquet"),
    "fleet": ("BOMB", "--no-html", "--workers", "1"),
    "info": ("BOMB",),
    "redact": ("BOMB", "out.sqlite"),
    "whatif": ("BOMB",),
}
# These read what they record themselves; the test of `mcp` is below.
OTHER_CAPTURES = {"mcp", "record"}


def leaf_commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command without subcommands, with its complete name."""
    if not isinstance(command, click.Group):
        yield name.strip(), command
        return
    context = click.Context(command)
    for child in command.list_commands(context):
        found = command.get_command(context, child)
        assert found is not None
        yield from leaf_commands(found, f"{name} {child}")


READING = [name for name, command in leaf_commands(cli) if any("--max-decoded" in each.opts for each in command.params)]


def repeat_leaf(path: Path, table: str, levels: int) -> Path:
    """Let a table consist of 100 ** levels copies of its only leaf page, which SQLite does not check."""
    with closing(sqlite3.connect(path)) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    data = bytearray(path.read_bytes())
    size = page_size(data)
    leaf = len(data) // size + 1
    data += data[(root - 1) * size : root * size]
    for level in range(levels):
        data += interior(leaf + level, size)
    data[(root - 1) * size : root * size] = data[-size:]
    data[28:32] = (len(data) // size).to_bytes(4, "big")
    path.write_bytes(data)
    return path


def texts_of_ranges(path: Path) -> Path:
    """A range with a long text."""
    build_export(path, kernels=[Kernel()], api=[Call()], nvtx=[Nvtx(text="r" * MEGABYTE)])
    return repeat_leaf(path, "NVTX_EVENTS", 2)


def default_texts(path: Path) -> Path:
    """Rows end before a column with a long default."""
    build_export(path, kernels=[Kernel()], api=[Call()], nvtx=[Nvtx()] * 10_000, drop=["NVTX_EVENTS.text"])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"ALTER TABLE NVTX_EVENTS ADD COLUMN text TEXT DEFAULT '{'d' * MEGABYTE}'")
    return path


def rows_of_kernels(path: Path) -> Path:
    """Rows of plain numbers."""
    build_export(path, kernels=[Kernel(correlation=1)] * 10, api=[Call()])
    return repeat_leaf(path, "CUPTI_ACTIVITY_KIND_KERNEL", 3)


def settings(path: Path) -> Path:
    """Settings with long names and values, which no command reads."""
    build_export(path, kernels=[Kernel()], api=[Call()])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        row = ("CAPTURE_EVENT_TYPE", "v" * MEGABYTE)
        connection.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", row)
    return repeat_leaf(path, "META_DATA_CAPTURE", 2)


def payloads(path: Path) -> Path:
    """Marks of Python samples with long payloads."""
    marks = [Nvtx(text="Python Backtrace", kind=75, domain=3), Nvtx(kind=34, domain=3)]
    build_export(path, kernels=[Kernel()], api=[Call()], nvtx=marks)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN category INTEGER DEFAULT 1")
        connection.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData BLOB")
        connection.execute("UPDATE NVTX_EVENTS SET binaryData = zeroblob(?) WHERE eventType = 34", (MEGABYTE,))
    return repeat_leaf(path, "NVTX_EVENTS", 2)


def test_every_command_that_reads_is_tested() -> None:
    assert set(READING) == ARGUMENTS.keys() | OTHER_CAPTURES
    for name, command in leaf_commands(cli):
        takes_capture = any(each.type.__class__.__name__ == "_Capture" for each in command.params)
        assert not takes_capture or name in ARGUMENTS


@pytest.mark.parametrize("command", sorted(ARGUMENTS))
def test_commands_refuse_a_bomb(tmp_path: Path, command: str) -> None:
    bomb = texts_of_ranges(tmp_path / "bomb.sqlite")
    assert bomb.stat().st_size < 2 * MEGABYTE
    rest = [bomb.name if word == "BOMB" else word for word in ARGUMENTS[command]]
    code, message = run(*command.split(), *rest, "--max-decoded", LIMIT, folder=tmp_path, memory=MEMORY)
    assert (code, message.count("\n")) == (2, 1), message
    assert f"bomb.sqlite: decodes to more than {LIMIT}" in message
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["bomb.sqlite"]


def test_tools_for_agents_refuse_a_bomb(tmp_path: Path) -> None:
    texts_of_ranges(tmp_path / "bomb.sqlite")
    before = MAX_DECODED.set(50 * 10**6)
    try:
        with pytest.raises(Exception, match="decodes to more than 50MB"):
            Tools(Captures([], tmp_path)).open("bomb.sqlite")
        with pytest.raises(Exception, match="decodes to more than 50MB"):
            Tools(Captures([], tmp_path)).fleet(["bomb.sqlite"])
    finally:
        MAX_DECODED.reset(before)


@pytest.mark.parametrize("command", ["analyze", "info", "redact"])
@pytest.mark.parametrize("bomb", [default_texts, rows_of_kernels, settings, payloads])
def test_other_bombs(tmp_path: Path, bomb: Callable[[Path], Path], command: str) -> None:
    """A command may ignore a bomb; it may neither take gigabytes nor write them."""
    path = bomb(tmp_path / "bomb.sqlite")
    assert path.stat().st_size < 3 * MEGABYTE
    rest = [path.name if word == "BOMB" else word for word in ARGUMENTS[command]]
    code, message = run(command, *rest, "--max-decoded", LIMIT, folder=tmp_path, memory=MEMORY)
    if bomb is settings:
        assert (code, message) == (0, "")
    else:
        assert (code, message.count("\n")) == (2, 1), message
        # Whichever limit comes first: that of bytes, or that of SQLite's instructions for a file of this size.
        words = (f"bomb.sqlite: decodes to more than {LIMIT}", "bomb.sqlite: SQLite cannot read it (interrupted)")
        assert any(each in message for each in words)
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 10 * MEGABYTE
