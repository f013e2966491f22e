"""Tests of `traceview compare`: outputs, exit codes and error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.captures import analyzed, sample
from tests.cli.command import Command
from traceview.report.analysis import to_json

SERIAL, DUAL = sample("serial.sqlite"), sample("dual.sqlite")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the documents of SERIAL and DUAL, which compare as their reports do (test_documents.py)."""
    folder = tmp_path_factory.mktemp("documents")
    paths = folder / "serial.json", folder / "dual.json"
    for path, report in zip(paths, (SERIAL, DUAL), strict=True):
        path.write_text(to_json(analyzed(report)))
    return paths


def test_summary_and_files(traceview: Command, tmp_path: Path) -> None:
    document, summary = (tmp_path / f"compare.{end}" for end in ("json", "md"))
    code, out, err = traceview("compare", SERIAL, DUAL, "--json", document, "--markdown", summary)
    assert (code, err) == (0, "")
    assert "Faster: an iteration took 30.1 ms, now 13.6 ms, -54.6%" in out
    assert json.loads(document.read_text())["against"][0]["verdict"] == "faster"
    assert summary.read_text().startswith("### `serial.sqlite` → `dual.sqlite`: faster\n")
    assert sorted(tmp_path.iterdir()) == [document, summary]


def test_json_on_standard_output(traceview: Command, documents: tuple[Path, Path]) -> None:
    code, out, err = traceview("compare", SERIAL, DUAL, "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["base"]["file"] == "serial.sqlite"
    assert traceview("compare", *documents, "--markdown", "-").out.startswith("### ")


def test_fail_on_regression(traceview: Command, documents: tuple[Path, Path]) -> None:
    code, out, err = traceview("compare", DUAL, SERIAL, "--fail-on-regression")
    assert code == 1 and "Slower" in out
    assert err == (
        "traceview: --fail-on-regression: serial.sqlite is slower: an iteration took 13.6 ms, now 30.1 ms, "
        "+120.5% (95% interval +98.4% to +150.3%)\n"
    )
    assert traceview("compare", *documents, "--fail-on-regression", "-q") == (0, "", "")


def test_fail_if(traceview: Command, tmp_path: Path) -> None:
    document = tmp_path / "compare.json"
    code, _, err = traceview(
        *("compare", DUAL, SERIAL, "--json", document),
        *("--fail-if", "iteration > 3%", "--fail-if", "against.host.kernels.difference > 0"),
    )
    assert code == 1 and document.is_file()
    assert err.count("\n") == 1 and err == (
        "traceview: --fail-if iteration > 3%: iteration changed by +120.489% (+16.439483 ms of 13.643938 ms) on "
        "serial.sqlite\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.sqlite",), "missing.sqlite"),
        ((DUAL, "--fail-if", "iteratoin > 3%"), "the nearest is iteration"),
        ((DUAL, "--json", DUAL), "must be different files"),
        ((DUAL, "--json", "-", "--markdown", "-"), "only one of --json, --markdown and --junit"),
        ((DUAL, "--json", "nowhere/at/all.json"), "its folder does not exist"),
        ((DUAL, "--iteration", "nothing like it"), "no range matches --iteration"),
        ((DUAL, "--device", "GPU 9"), "no device is called 'GPU 9'"),
        ((DUAL, "--skip", "99"), "leaves none of 20 iterations"),
        ((), "compare takes BEFORE and AFTER"),
    ],
)
def test_user_errors_are_one_line(traceview: Command, arguments: tuple[object, ...], message: str) -> None:
    code, out, err = traceview("compare", SERIAL, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("traceview: error: ") and message in err
