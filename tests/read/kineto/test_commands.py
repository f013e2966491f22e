"""Every command takes a trace of torch.profiler, or says in one line what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.captures import sample
from traceview.cli import cli
from traceview.errors import TraceviewError

GRAPH, SERIAL = "torch_profiler/graph.json.gz", "torch_profiler/serial.json.gz"


def run(*arguments: str | Path) -> Result:
    found = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def test_analyze_writes_page_and_json(tmp_path: Path) -> None:
    page, figures = tmp_path / "page.html", tmp_path / "out.json"
    found = run("analyze", sample(GRAPH), "--html", page, "--json", figures)
    assert "graph.json.gz · torch.profiler" in found.output and "NVIDIA H200" in found.output
    assert json.loads(figures.read_text(encoding="utf-8"))["report"]["profiler"] == "torch.profiler"
    assert '"profiler":"torch.profiler"' in page.read_text(encoding="utf-8").replace(": ", ":")


def test_compare_names_the_two_profilers() -> None:
    found = run("compare", sample("trainer/serial.sqlite"), sample(SERIAL))
    assert "was captured by torch.profiler" in found.output.replace("\n  ", " ")
    assert "279        279            0" in found.output, "as many launches and kernels an iteration"


@pytest.mark.parametrize("command", ["whatif", "info"])
def test_other_commands(command: str) -> None:
    assert "graph.json.gz" in run(command, sample(GRAPH)).output


def test_redact_says_what_to_do_instead(tmp_path: Path) -> None:
    with pytest.raises(TraceviewError, match=r"a trace of torch\.profiler.*--json OUT"):
        run("redact", sample(GRAPH), tmp_path / "copy.sqlite")
    assert not list(tmp_path.iterdir())
