"""The closed loop with a stand-in for nsys whose recordings are real samples, made before and after true changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.captures import SAMPLES, sample
from tests.cli.command import Command
from traceview.cli.schemas import SCHEMAS
from traceview.comparison.ledger import read_ledger, write_ledger
from traceview.pipeline import analyze
from traceview.replay.prediction import measured, predict
from traceview.report.ledger import ExpectedTime, GainLedger, LedgerEntry, OpenStep

TIMES = st.integers(1, 10**12)
EXPECTED = st.builds(ExpectedTime, st.text(max_size=9), st.text(max_size=9), TIMES, TIMES, TIMES)
ENTRIES = st.builds(
    LedgerEntry, *(st.text(max_size=9),) * 2, TIMES, TIMES, EXPECTED, st.just("faster"), st.text(max_size=9)
)
STEPS = st.none() | st.builds(OpenStep, st.just("1.nsys-rep"), TIMES, st.lists(EXPECTED, max_size=2).map(tuple))


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an nsys made by hand: a recording names the sample in the file `now`, and its export is that sample."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nsys"
    path.write_text(
        "#!/bin/sh\n"
        'case "$1" in --version) echo "version 2024.2.3";; '
        'profile) for word; do case "$word" in --output=*) out=${word#--output=};; esac; done; '
        "printf 'NVIDIA Tegra Profiler Report 2024@2@3 %s' \"$(cat now)\" >$out.nsys-rep;; "
        f'export) cp {SAMPLES}/$(awk \'{{print $NF}}\' "$6").sqlite "$5";; *) exit 1;; esac\n'
    )
    path.chmod(0o755)
    (tmp_path / "now").write_text("trainer/serial")
    return path


def run(traceview: Command, nsys: Path, *words: str) -> Any:
    done = traceview("optimize", "--nsys", nsys, "--run", "true", "--json", "ledger.out", *words)
    assert done.code == 0, done.err
    return json.loads(Path("ledger.out").read_text())


def test_change_by_a_command_and_then_by_hand(traceview: Command, nsys: Path, tmp_path: Path) -> None:
    made = "test -s $TRACEVIEW_LEDGER && echo trainer/pinned >now"
    first = run(traceview, nsys, "--change", made, "--expect", "pin,sync")
    entry = first["entries"][0]
    before, after = (analyze(sample(f"trainer/{name}.sqlite"), costs=None) for name in ("serial", "pinned"))
    truth = predict(before, ["pin", "sync"])
    assert (entry["before"], entry["after"], entry["verdict"]) == ("1.nsys-rep", "2.nsys-rep", "faster")
    assert (entry["before_ns"], entry["measured_ns"]) == (measured(before), measured(after))
    assert {**entry["expected"], "title": ""} == {
        "change": "pin+sync",
        "title": "",
        "iteration_ns": truth.iteration_ns,
        "low_ns": truth.low_ns,
        "high_ns": truth.high_ns,
    }
    assert entry["inside"] and abs(entry["error_fraction"]) < 0.1
    (tmp_path / "now").write_text("trainer/prefetch")
    second = run(traceview, nsys)  # the change was made before this run; the best prediction is expected
    assert second["entries"][0] == entry
    assert (second["entries"][1]["before"], second["entries"][1]["expected"]["change"]) == ("2.nsys-rep", "prefetch")
    assert second["entries"][1]["measured_gain_fraction"] > 0.15
    assert second["mean_error_fraction"] == pytest.approx(
        sum(abs(row["error_fraction"]) for row in second["entries"]) / 2, abs=1e-6
    )
    assert second["open_step"]["recording"] == "3.nsys-rep"
    Draft202012Validator(SCHEMAS["optimize"]()).validate(second)
    printed = traceview("optimize", "--ledger")
    assert "2 changes: mean error" in printed.out and "2 inside the predicted range" in printed.out
    assert json.loads((tmp_path / "optimize" / "ledger.json").read_text()) == second


def test_first_run_predicts_and_ends_without_a_terminal(traceview: Command, nsys: Path, tmp_path: Path) -> None:
    (tmp_path / "now").write_text("scenarios/p2p")
    started = traceview("optimize", "--nsys", nsys, "--run", "true", "--folder", "x")
    assert (started.code, started.out) == (0, "")
    assert "each change alone would give" in started.err and "then run the same command again" in started.err
    step = read_ledger(tmp_path / "x").open_step
    assert step is not None and step.recording == "1.nsys-rep" and step.expected
    for words, message in (
        (("--change", "exit 3"), "the command of --change ended with exit code 3"),
        (("--expect", "nothing"), "unknown change 'nothing'; choose from "),
        (("--iterations", "3", "--seconds", "3"), "both end the recording"),
        (("--json", "-"), "--json needs a file name with --run"),
        (("--ledger",), "use --run COMMAND, or --ledger"),
    ):
        wrong = traceview("optimize", "--nsys", nsys, "--run", "true", "--folder", "x", "-q", *words)
        assert (wrong.code, wrong.err.count("\n")) == (2, 1) and message in wrong.err
    assert read_ledger(tmp_path / "x") == GainLedger((), step)


def test_failure_leaves_no_empty_folder(traceview: Command, tmp_path: Path) -> None:
    done = traceview("optimize", "--nsys", "no-such-nsys", "--folder", str(tmp_path / "steps"), "--run", "true")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert not (tmp_path / "steps").exists()


@given(st.builds(GainLedger, st.lists(ENTRIES, max_size=3).map(tuple), STEPS))
def test_ledger_survives_the_file(tmp_path_factory: pytest.TempPathFactory, ledger: GainLedger) -> None:
    folder = tmp_path_factory.getbasetemp()
    write_ledger(folder, ledger)
    assert read_ledger(folder) == ledger


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"entries": [{"before_ns": 0}], "open_step": null}', "nul\0"])
def test_other_files_are_refused(traceview: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger.json").write_text(text)
    wrong = traceview("optimize", "--ledger", "--folder", tmp_path)
    assert (wrong.code, wrong.err.count("\n")) == (2, 1) and "ledger.json is not a ledger of traceview" in wrong.err
