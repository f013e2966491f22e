"""The answer: its sentence, the remedies in one line, and the gains that it states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from tests.report.made_analysis import MS, bare_analysis, made_analysis
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.findings import Gain
from traceview.model.units import time_range
from traceview.pipeline import analyze
from traceview.replay.prediction import whatif as predictions
from traceview.report.analysis.answer import outside_notes
from traceview.rules.answer import whole_percent, with_answer


@pytest.fixture(scope="module")
def serial() -> Analysis:
    return analyzed(sample("serial.sqlite"))


def answer(analysis: Analysis) -> str:
    return with_answer(analysis).answer.text


def test_answer_of_several_devices_is_that_of_the_first_finding() -> None:
    analysis = made_analysis(devices=2, findings=1)
    [finding] = analysis.findings
    first, second = analysis.devices
    slow = replace(second, steady=replace(second.steady, compute_ns=5 * MS))
    wait = replace(finding, loss="synchronizations", device="GPU 1", cost_ns=20 * MS, unprofiled_cost_ns=None)
    assert ": of GPU 1 20% is synchronizations" in answer(replace(analysis, devices=(first, slow), findings=(wait,)))


def test_without_findings_or_gpu_work() -> None:
    assert answer(bare_analysis()).endswith(": 100% is compute. No known problem costs a thousandth of it.")
    assert answer(replace(bare_analysis(), devices=())) == "The capture has no GPU work."


def test_answer_states_the_run_and_the_best_change(serial: Analysis) -> None:
    first = serial.findings[0]
    assert first.id == "pageable_copies" and first.gain.source == "predicted"
    text = serial.answer.text
    assert text.startswith("PyTorch training, 30.1 ms a step under nsys, about 27.0 ms without: ")
    assert (
        "56% is waiting for pageable copies, 23% compute and 10% the profiler. Pinned host memory would take a step to "
        in text
    )
    low, high = first.gain.after_ns
    assert text.endswith(f"to {time_range(low, high)}.")
    assert (serial.answer.change, serial.answer.gain) == ("pin", first.gain)


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Gain(0, 0, 3 * MS, "predicted", "", 300 * MS), "No known change gains much: "),
        (
            Gain(30 * MS, 0, 30 * MS, "bound", "no model", 300 * MS),
            "Pinned host memory would save at most 10%.",
        ),
        (Gain(0, 0, 0, "none", "a mystery", 300 * MS), "block the host for"),
    ],
)
def test_answer_without_a_replay(serial: Analysis, gain: Gain, words: str) -> None:
    assert words in answer(replace(serial, findings=(replace(serial.findings[0], gain=gain),)))


def test_remedy_of_a_case_has_not_the_effect_of_the_entry(serial: Analysis) -> None:
    gain = Gain(30 * MS, 0, 30 * MS, "bound", "no model", 300 * MS)
    small = replace(serial.findings[0], gain=gain, change="", effect="", remedy="Gather small copies.")
    assert answer(replace(serial, findings=(small,))).endswith("Gather small copies: that saves at most 10%.")


def test_change_of_several_kinds_is_of_the_mean_iteration() -> None:
    text = analyzed(sample("exposure/one_price.sqlite.xz")).answer.text
    assert text.startswith("PyTorch, 20 iterations, 10 of 2.84 ms and 10 of 4.74 ms: ")
    assert " would take the mean iteration to 2." in text


def test_several_kinds_are_iterations_not_steps(serial: Analysis) -> None:
    """A training that generates text at its end has tokens beside its steps (`mingpt` of round 14)."""
    assert isinstance(serial.iterations, Iterations)
    known = analyzed(sample("exposure/one_price.sqlite.xz")).iterations
    assert isinstance(known, Iterations)
    text = answer(replace(serial, iterations=replace(serial.iterations, kinds=known.kinds)))
    assert text.startswith("PyTorch training, 20 iterations, 10 of ") and " would take the mean iteration to " in text


def test_without_iterations_the_run_is_the_base(serial: Analysis) -> None:
    text = answer(replace(serial, iterations=NotMeasured("nothing repeats")))
    assert text.startswith("PyTorch training, 601 ms: ") and " would take the run to " in text


@pytest.mark.parametrize("name", ["serial", "dual", "ddp2", "trainer/serial", "trainer/prefetch", "cudagraph"])
def test_analyze_and_whatif_agree(name: str) -> None:
    """Findings have the gains of `whatif`, and are in its order."""
    analysis = analyzed(sample(f"{name}.sqlite"))
    result = predictions(analysis)
    assert not isinstance(result, NotMeasured)
    known = {row.change: row for row in result.predictions}
    gained = [
        finding for finding in analysis.findings if finding.gain.source == "predicted" and finding.change in known
    ]
    for finding in gained:
        row, gain = known[finding.change], finding.gain
        assert (gain.of_ns, gain.of_ns - gain.ns) == (result.base_ns, row.iteration_ns)
        assert gain.after_ns == (row.low_ns, row.high_ns)
    order = list(dict.fromkeys(finding.change for finding in gained))
    assert order == [row.change for row in result.predictions if row.change in order]


def test_no_gain_is_above_what_is_left_beside_the_kernels() -> None:
    for name in ("serial", "dual", "quad", "trainer/staged"):
        for finding in analyzed(sample(f"{name}.sqlite")).findings:
            assert finding.gain.low_ns <= finding.gain.ns <= finding.gain.high_ns <= finding.gain.of_ns


def test_remedies_that_fit_the_place(serial: Analysis) -> None:
    remedies = {finding.title: finding.remedy for finding in serial.findings if finding.id == "host_bound"}
    by_range = {title.partition("`")[2].partition("`")[0]: remedy for title, remedy in remedies.items()}
    assert by_range["optimizer"] == "Use a fused or a compiled optimizer step."
    assert by_range["backward"].startswith("Find the line first")  # a range that launches kernels does not say where
    assert by_range[""] == "Find the line first: `traceview record --python`."  # it has ranges
    assert all(0 < len(finding.remedy) <= 70 for finding in serial.findings)


@pytest.mark.parametrize(
    ("fraction", "words"), [(0.431, "43%"), (0.994, "99%"), (0.996, "99.6%"), (0.9999, "99.9%"), (1.0, "100%")]
)
def test_less_than_all_is_not_all(fraction: float, words: str) -> None:
    assert whole_percent(fraction) == words


@pytest.mark.parametrize(("classes", "words"), [("copy", "The capture has no kernel, but 2 copies. "), ("compute", "")])
def test_capture_without_a_kernel_says_so(classes: str, words: str) -> None:
    trace = made_trace([(0, 9 * MS, "copy", 0, None), (9 * MS, 10 * MS, classes, 0, None)])
    assert analyze(trace).answer.text.startswith(f"{words}CUDA, ")


def test_remedy_where_no_graph_applies() -> None:
    """An iteration in which the host waits for the GPU cannot be one graph (`jacc_cg` of round 12)."""
    work, calls = [], []
    for at in range(200):
        begin = 40_000 * at
        calls += [(begin, begin + 9_000, "api", 0), (begin + 10_000, begin + 15_000, "sync", 0)]
        work += [(begin + 10_000, begin + 15_000, "compute", 0, 2 * at)]
    ranges = [(400_000 * at, 400_000 * at + 399_000, f"step {at}", 0) for at in range(20)]
    found = {finding.id: finding for finding in analyze(made_trace(work, calls, ranges)).findings}
    assert "`graph` does not apply" in found["launch_bound"].gain.reason
    assert (found["launch_bound"].remedy, found["launch_bound"].effect) == ("Launch fewer, larger kernels.", "")


def test_time_outside_the_iterations_that_is_most_of_the_run_comes_first() -> None:
    """If calls take most of it before the first kernel, that is start-up. The notes do not say it again."""
    starts = [1000 * MS + step * 40 * MS for step in range(10)]
    ranges = [(start, start + 40 * MS, f"step {start}", 0) for start in starts]
    loop = [(start, start + 39 * MS, "compute", 0, None) for start in starts]
    outside = "1.00 s of the run of 1.40 s lie outside the counted iterations, nearly all before them."
    for call, first, words in (
        (500 * MS, 900 * MS, "Start-up takes 900 ms of the run of 1.40 s."),
        (20 * MS, 900 * MS, "900 ms of the run of 1.40 s lie before the first kernel, mostly outside CUDA calls."),
        (20 * MS, 1 * MS, outside),
    ):
        trace = made_trace([(first, first + MS, "compute", 0, None), *loop], [(0, call, "memory", 0)], ranges)
        analysis = analyze(trace)
        assert analysis.answer.text.startswith(f"{words} CUDA, ")
        assert analysis.notes and not [*outside_notes(analysis)]
