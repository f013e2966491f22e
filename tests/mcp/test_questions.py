"""questions.txt: questions on eleven captures, asked by the client of the MCP SDK over standard input and output.

Each takes at most three calls and 4 kB in total, and its answer equals the JSON of `analyze`, `compare` or `whatif`.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcp import Client, StdioServerParameters

from tests.captures import ROOT, SAMPLES
from traceview import fleet
from traceview.comparison import compare_analyses
from traceview.mcp.agents import NAMES
from traceview.model.analysis import Analysis
from traceview.pipeline import analyze
from traceview.replay.prediction import whatif
from traceview.report.analysis import document
from traceview.report.comparison import document as comparison_document
from traceview.report.fleet import document as fleet_document
from traceview.report.whatif import document as whatif_document

MAX_CALLS, MAX_TOTAL = 3, 4_000
CAPTURES = {
    "S": "trainer/serial.sqlite",
    "P": "trainer/pinned.sqlite",
    "D": "trainer/ddp.sqlite",
    "G": "cudagraph.sqlite",
    "R": "mpi/ring.sqlite",
    "T": "torch_profiler/serial.json.gz",
    "F": "fsdp_tp/rank0.json.gz",
    "O": "openacc/heat_as_2024.2.sqlite",
    "Q": "quad.sqlite",
    "X": "scenarios/p2p.sqlite",
    "K": "ranks/slowgpu_rank*",
}


class Question(NamedTuple):
    text: str
    calls: list[str]
    path: str
    truth: str


class Asked(NamedTuple):
    answer: Any
    size: int  # bytes of all answers


def questions() -> list[Question]:
    lines = (Path(__file__).parent / "questions.txt").read_text().splitlines()
    rows = [[part.strip() for part in line.split("|")] for line in lines if not line.startswith("#")]
    return [Question(text, calls.split("; "), path, truth) for text, calls, path, truth in rows]


QUESTIONS = questions()


def at(value: Any, path: str) -> Any:
    """Return the value at a path: `devices.0.steady.compute_ns`."""
    for key in path.split("."):
        value = value[int(key) if isinstance(value, list) else key]
    return value


def arguments(words: list[str], before: Any) -> dict[str, Any]:
    """Return the arguments of a call; the first is the capture if it has no name."""
    pairs = dict(word.split("=") if "=" in word else ("capture", word) for word in words)
    filled = {key: re.sub(r"\{(.+)\}", lambda match: str(at(before, match[1])), text) for key, text in pairs.items()}
    given: dict[str, Any] = {key: CAPTURES.get(text, text) for key, text in filled.items()}
    if "*" in given.get("capture", ""):
        given["captures"] = [given.pop("capture")]
    return {key: int(value) if key in ("rows", "number") else value for key, value in given.items()}


async def converse() -> tuple[list[str], list[Asked], list[Any]]:
    """Ask every question in a session with one server, and make two calls that it refuses."""
    environment = {"PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "2"}
    command = ["-m", "traceview", "mcp"]
    async with Client(
        StdioServerParameters(command=sys.executable, args=command, cwd=SAMPLES, env=environment)
    ) as client:
        tools = (await client.list_tools()).tools
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        asked = []
        for question in QUESTIONS:
            answer, size = None, 0
            for call in question.calls:
                name, *words = call.split()
                result = await client.call_tool(name, arguments(words, answer))
                text = result.content[0].text  # type: ignore[union-attr]
                assert not result.is_error and result.structured_content == json.loads(text), text
                answer, size = json.loads(text), size + len(text.encode())
            asked.append(Asked(answer, size))
        wrong = ("/etc/passwd", "no-such.sqlite")
        refused = [await client.call_tool("summary", {"capture": capture}) for capture in wrong]
        return [tool.name for tool in tools], asked, refused


@pytest.fixture(scope="module")
def conversation() -> tuple[list[str], list[Asked], list[Any]]:
    return asyncio.run(converse())


@cache
def analysis(name: str) -> Analysis:
    return analyze(SAMPLES / CAPTURES[name])


@cache
def written(command: str, *names: str) -> Any:
    """Return the JSON document of a command."""
    if command == "fleet":
        return fleet_document(fleet(SAMPLES / CAPTURES[names[0]]))
    analyses = [analysis(name) for name in names]
    if command == "compare":
        return comparison_document(compare_analyses(analyses))["against"][0]  # type: ignore[index, call-overload]
    return whatif_document(whatif(analyses[0])) if command == "whatif" else document(analyses[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("number", range(len(QUESTIONS)), ids=lambda number: QUESTIONS[number].text)
def test_answers_equal_the_json(conversation: tuple[list[str], list[Asked], list[Any]], number: int) -> None:
    question, asked = QUESTIONS[number], conversation[1][number]
    found = at(asked.answer, question.path)
    if question.truth.startswith("= "):
        assert found.startswith(question.truth[2:])
    else:
        *command, path = question.truth.split()
        assert found == at(written(*command), path) and found not in (None, "", [], {})
    assert len(question.calls) <= MAX_CALLS and asked.size <= MAX_TOTAL


def test_server_names_its_tools_and_refuses(conversation: tuple[list[str], list[Asked], list[Any]]) -> None:
    names, _, (outside, missing) = conversation
    assert len(QUESTIONS) >= 30 and len(CAPTURES) >= 10 and tuple(names) == NAMES
    assert outside.is_error and "outside the working folder" in outside.content[0].text
    assert missing.is_error and "no-such.sqlite" in missing.content[0].text
