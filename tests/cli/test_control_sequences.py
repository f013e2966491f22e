"""Names that hold terminal sequences, and characters that reverse or hide text, control no output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.build_export import Call, Kernel, Nvtx, ThreadName, build_export
from tests.cli.command import Command

NAME = "\x1b[2J\x1b]0;title\x07\x9b31m\u202eesrever\u202c\U000e0041\u200bname"
COMMANDS = (
    *("analyze {0} --no-html", "analyze {0} -v --no-html", "analyze {0} --no-html --quiet --json -", "info {0} -v"),
    *("info {0} --json -", "whatif {0} -v", "whatif {0} --json -", "compare {0} {0} -v", "compare {0} {0} --json -"),
    *("compare {0} {0} --markdown -", "fleet {0} -v --no-html --workers 1", "fleet {0} --no-html --quiet --json -"),
)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    starts = range(0, 4_000_000, 200_000)
    return build_export(
        tmp_path_factory.mktemp("capture") / "h.sqlite",
        kernels=[Kernel(at + 50_000, at + 90_000, NAME, correlation=at + 1) for at in starts],
        api=[Call(at, at + 9_000, "cudaLaunchKernel", correlation=at + 1) for at in starts],
        nvtx=[Nvtx(at, at + 100_000, text=f"step {NAME}") for at in starts],
        threads=[ThreadName(NAME)],
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_output_has_no_control_characters(traceview: Command, capture: Path, command: str) -> None:
    ran = traceview(*command.format(capture).split())
    assert ran.out and ran.code == 0
    for text in (ran.out, ran.err):
        assert [line for line in text.split("\n") if not line.isprintable()] == []


def test_names_in_json_stay_the_same(traceview: Command, capture: Path) -> None:
    document: Any = json.loads(traceview("analyze", capture, "--no-html", "--quiet", "--json", "-").out)
    assert document["devices"][0]["kernels"][0]["name"] == NAME
