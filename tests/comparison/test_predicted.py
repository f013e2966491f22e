"""`compare --change`: what whatif predicts from BEFORE beside what came, for true changes of the trainer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.captures import analyzed, sample
from tests.cli.command import Command
from tests.comparison.test_captures import only
from traceview import analyze, compare
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations
from traceview.replay.prediction import predict
from traceview.report.analysis import to_json
from traceview.report.comparison.terminal import to_markdown

TRUE_CHANGES = [("serial", "pinned", ("pin", "sync")), ("pinned", "prefetch", ("prefetch",))]


def trainer(name: str) -> Analysis:
    return analyzed(sample(f"trainer/{name}.sqlite"))


@pytest.mark.parametrize(("before", "after", "changes"), TRUE_CHANGES)
def test_prediction_is_that_of_whatif_with_the_profiler(before: str, after: str, changes: tuple[str, ...]) -> None:
    truth = predict(analyze(sample(f"trainer/{before}.sqlite"), costs=None), changes)
    comparison = compare(trainer(before), trainer(after), changes=changes)
    found, came = only(comparison).predicted, trainer(after).iterations
    assert found is not None and isinstance(came, Iterations)
    assert (found.change, found.iteration_ns, found.low_ns, found.high_ns) == (
        "+".join(changes),
        truth.iteration_ns,
        truth.low_ns,
        truth.high_ns,
    )
    assert (found.before_ns, found.result_ns) == (comparison.base.iterations.time_ns, came.time_ns)
    assert found.is_inside and not found.without_profiler
    assert found.error == pytest.approx(truth.iteration_ns / came.time_ns - 1)


def test_every_report_has_the_prediction(traceview: Command, tmp_path: Path) -> None:
    paths = [sample(f"trainer/{name}.sqlite") for name in ("serial", "pinned", "prefetch")]
    outputs = [f"--{kind}={tmp_path / kind}" for kind in ("json", "markdown")]
    code, out, err = traceview("compare", *paths[:2], "--change", "pin,sync", *outputs)
    assert (code, err) == (0, "")
    (line,) = (line for line in out.splitlines() if "redicted for" in line)
    assert line == "  Predicted for pin+sync: 12.9 ms (12.1 to 15.1 ms); 12.8 ms came, inside the range"
    row = json.loads((tmp_path / "json").read_text())["against"][0]["predicted"]
    assert row == {
        "change": "pin+sync",
        "title": row["title"],
        "before_ns": row["before_ns"],
        "iteration_ns": row["iteration_ns"],
        "low_ns": row["low_ns"],
        "high_ns": row["high_ns"],
        "result_ns": row["result_ns"],
        "error_fraction": round(row["iteration_ns"] / row["result_ns"] - 1, 6),
        "inside": True,
        "without_profiler": False,
    }
    assert line.strip() + "." in (tmp_path / "markdown").read_text()
    several = traceview("compare", *paths, "--change", "pin").out
    assert several.count("predicted for pin") == 2 and "10.6 ms came, outside the range" in several
    assert json.loads(traceview("compare", *paths[:2], "--json", "-").out)["against"][0]["predicted"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pinn", "unknown change 'pinn'; choose from pin, "),
        ("", "unknown change ''"),
        ("bf16", "serial.sqlite: no matrix product or convolution runs in FP32"),
    ],
)
def test_wrong_changes_are_one_line(traceview: Command, change: str, message: str) -> None:
    paths = [sample(f"trainer/{name}.sqlite") for name in ("serial", "pinned")]
    code, out, err = traceview("compare", *paths, "--change", change)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


def test_capture_without_iterations_has_no_prediction(traceview: Command) -> None:
    heat, ring = sample("mpi/heat.sqlite"), sample("mpi/ring.sqlite")
    code, out, err = traceview("compare", heat, ring, "--change", "pin")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    (path := tmp_path / "main.json").write_text(to_json(trainer("serial")))
    return path


def test_document_holds_the_prediction_of_a_finding(stored: Path) -> None:
    """It is the one without the profiler, and so is what came."""
    truth: Any = next(finding for finding in trainer("serial").findings if finding.change == "pin")
    found = only(compare(stored, trainer("pinned"), changes=["pin"])).predicted
    after = trainer("pinned").iterations
    assert found is not None and isinstance(after, Iterations) and after.unprofiled is not None
    assert found.without_profiler and found.result_ns == after.unprofiled.mean_ns
    assert (found.iteration_ns, found.low_ns, found.high_ns) == tuple(
        truth.gain.of_ns - ns for ns in (truth.gain.ns, truth.gain.high_ns, truth.gain.low_ns)
    )
    measured = replace(trainer("pinned"), iterations=replace(after, unprofiled=None))
    unknown = only(compare(stored, measured, changes=["pin"])).predicted
    assert unknown is not None and unknown.result_ns is unknown.is_inside is unknown.error is None
    assert "what came is not known" in to_markdown(compare(stored, measured, changes=["pin"]))


def test_document_without_the_prediction(stored: Path) -> None:
    with pytest.raises(RequestError) as error:
        compare(stored, trainer("pinned"), changes=["pin", "sync"])
    assert str(error.value).startswith("main.json: a document has no trace from which pin+sync could be predicted (it")
    with pytest.raises(RequestError, match="no trace from which prefetch could be predicted"):
        compare(stored, trainer("pinned"), changes=["prefetch"])
