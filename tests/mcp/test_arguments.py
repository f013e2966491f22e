"""Every argument of every tool, with values of every kind: an answer of at most 4 kB, or an error with a reason.

The arguments come from the schemas of the tools, so that a new tool or argument is tried, too. After each call the
server answers as before.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from tests.captures import sample
from traceview.errors import RequestError
from traceview.mcp.agents import NAMES, Tools, build_server
from traceview.mcp.answers import MAX_BYTES
from traceview.mcp.captures import Captures
from traceview.ranks import analyze_reports

CAPTURE = "a.sqlite"
LEAST: dict[str, dict[str, Any]] = {  # arguments without which a tool answers nothing
    **{name: {"capture": CAPTURE} for name in NAMES},
    "table": {"capture": CAPTURE, "name": "kernels"},
    "window": {"capture": CAPTURE, "start": "1ms", "end": "2ms"},
    "compare": {"before": CAPTURE, "after": CAPTURE},
    "fleet": {"captures": [CAPTURE]},
}
TEXTS = (
    *("", " ", "\0", "a\0b", "x" * 5_000, "../" * 40, "/etc/passwd", "\udc80", "\n\x1b[2J", "-1", "é" * 300),
    *(
        "(",
        "(a+)+$",
        "(.*a){30}$",
        r"\w{1000}",
        "(?=a)",
        "9" * 400,
        "1e400",
        "nan",
        "inf",
        "@",
        "-5ms",
        "99ns",
        ".",
        "99999999999s",
        "@-99999999999.5s",
    ),
)
VALUES: dict[str, tuple[Any, ...]] = {
    "string": TEXTS,
    "integer": (-(10**30), -1, 0, 1, 51, 2**63, 10**30),
    "boolean": (True, False),
    "object": ({}, {"": 1.0}, {"x" * 5_000: 2.0}, {"gemm": 0.0}, {"gemm": -1.0}, {"gemm": 1e308}, {"gemm": 1e-308}),
}
# Shapes that no schema allows.
WRONG: tuple[Any, ...] = (None, [], {"a": []}, [[[]]], 1.5, float("nan"), float("inf"), "x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    shutil.copy(sample("scenarios/p2p.sqlite"), folder / CAPTURE)
    return folder


def _kinds(schema: dict[str, Any]) -> list[str]:
    return [kind["type"] for kind in schema.get("anyOf", [schema]) if kind.get("type") in VALUES]


def _in_this_process(function: Callable[[Any], Any], jobs: Sequence[Any], _count: int) -> Iterator[tuple[int, Any]]:
    """Yield what `in_processes` yields; a new process for each of the values of `fleet` would take a minute."""
    yield from ((index, function(job)) for index, job in enumerate(jobs))


@pytest.mark.parametrize("tool", NAMES)
def test_every_argument(folder: Path, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyze_reports, "in_processes", _in_this_process)
    server = build_server([], folder)

    def text_of(name: str, arguments: dict[str, Any]) -> str:
        try:
            result: Any = asyncio.run(server.call_tool(name, arguments))
        except ToolError as error:
            text = str(error)
            assert text.removeprefix(f"Error executing tool {name}").strip(": "), arguments
            assert "pydantic" not in text.lower() and "\n" not in text, arguments
            assert "internal error" not in text and "Traceback" not in text, arguments
            return ""
        text = result.content[0].text
        assert 0 < len(text.encode()) <= MAX_BYTES, arguments
        return str(text)

    before = text_of("summary", {"capture": CAPTURE})
    schema = next(each for each in asyncio.run(server.list_tools()) if each.name == tool).input_schema
    for name, kind in schema["properties"].items():
        for value in [value for known in _kinds(kind) for value in VALUES[known]] + list(WRONG):
            answer = text_of(tool, {**LEAST[tool], name: value})
            if tool == "open" and answer:
                text_of("open", {"capture": CAPTURE})
            assert text_of("summary", {"capture": CAPTURE}) == before, (name, value)


@pytest.mark.parametrize("options", [{"iteration": "("}, {"iteration": "no such range"}, {"skip": 10**6}])
def test_options_that_do_not_fit_are_not_kept(options: dict[str, Any]) -> None:
    name = "trainer/serial.sqlite"
    captures = Captures([], sample(name).parents[1])
    tools = Tools(captures)
    tools.open(name, skip=2)
    with pytest.raises(RequestError):
        tools.open(name, **options)
    assert tools.summary(name)["iterations"]["skipped"] == 2


def test_links_of_a_folder_are_files_outside(tmp_path: Path) -> None:
    """A folder capture whose tables were links to another folder was read."""
    work, other = tmp_path / "work", tmp_path / "other"
    (work / "capture").mkdir(parents=True)
    other.mkdir()
    (other / "secret").write_bytes(b"PAR1")
    (work / "capture" / "StringIds.parquet").write_bytes(b"PAR1")
    captures = Captures([], work)
    assert captures.path("capture") == work / "capture"
    (work / "capture" / "OPERATIONS.parquet").symlink_to(other / "secret")
    with pytest.raises(RequestError, match="outside the working folder"):
        captures.path("capture")
    assert Captures([other], work).path("capture") == work / "capture"


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_journals_that_link_to_a_file_outside(tmp_path: Path, suffix: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    named = tmp_path / f"{CAPTURE}{suffix}"
    named.write_text("x")
    assert Captures([tmp_path / CAPTURE], work).path(str(tmp_path / CAPTURE)) == tmp_path / CAPTURE
    (work / named.name).symlink_to(named)
    with pytest.raises(RequestError, match="outside the working folder"):
        Captures([], work).path(CAPTURE)
