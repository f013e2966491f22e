"""First screens have one base, gains bounded by costs, and short names: over all samples and shared captures."""

from __future__ import annotations

import re

import polars as pl
import pytest

from tests.captures import CAPTURES, SAMPLES
from traceview.model.analysis import Analysis, Iterations
from traceview.model.composition import composition
from traceview.model.findings import OTHERS_LIMIT, Gain
from traceview.pipeline import analyze
from traceview.report.analysis.answer import gain_words
from traceview.report.analysis.terminal import render_brief
from traceview.rules.answer import first_sentences

MAX_WORDS = 45  # of the answer
FORMATS = (".sqlite", ".sqlite.xz", ".json.gz")
PATHS = sorted(path for folder in (SAMPLES, CAPTURES) for path in folder.rglob("*") if path.name.endswith(FORMATS))


@pytest.fixture(params=PATHS, ids=lambda path: path.name, scope="module")
def analysis(request: pytest.FixtureRequest) -> Analysis:
    """Each capture analyzed."""
    return analyze(request.param)


def test_parts_add_up_and_the_answer_has_the_shares_of_the_bar(analysis: Analysis) -> None:
    wholes = {use.id: composition(analysis, use) for use in analysis.devices}
    for whole in wholes.values():
        assert sum(whole.parts.values()) == whole.whole_ns and min(whole.parts.values()) >= 0
    named = re.search(r": (?:of (?P<gpu>[^%]+?) )?(?P<shares>\d[\d.]*% .*?)\.(?: |$)", analysis.answer.text)
    if named is None:
        assert not analysis.devices or "nothing" in analysis.answer.text, analysis.answer.text
        return
    whole = wholes[named["gpu"] or analysis.devices[0].id]
    for look, words in (("compute", "compute"), ("profiler", "the profiler")):
        if stated := re.search(rf"([\d.]+)% (?:is )?{words}\b", named["shares"]):
            assert float(stated[1]) == pytest.approx(100 * whole.parts[look] / whole.whole_ns, abs=0.51)
    stated = [float(percent) for percent in re.findall(r"([\d.]+)%", named["shares"])]
    assert sum(stated) <= 101


def test_gains_are_at_most_what_they_cost_or_say_why(analysis: Analysis) -> None:
    for finding in (each for first in analysis.findings for each in first.by_device):
        gain, cost = finding.gain, finding.cost_ns if finding.unprofiled_cost_ns is None else finding.unprofiled_cost_ns
        if (
            isinstance(analysis.iterations, Iterations)
            and not finding.once
            and finding.cost_per_iteration_ns is not None
        ):
            each = finding.unprofiled_cost_per_iteration_ns
            cost = finding.cost_per_iteration_ns if each is None else each
        if gain.source == "bound":
            assert gain.ns <= cost, finding.title
        if gain.source == "predicted":
            assert gain.ns <= cost or gain.reason.startswith("also "), finding.title


def test_first_screen_says_what_a_gain_above_its_cost_comes_from(analysis: Analysis) -> None:
    for finding in (each for first in analysis.findings for each in first.by_device):
        assert finding.gain.reason.startswith("also ") == ("also " in gain_words(finding.gain)), finding.title


def test_titles_have_one_base_for_percentages(analysis: Analysis) -> None:
    """Shares in titles are of the time that the bar shows."""
    for finding in analysis.findings:
        assert "%" not in re.sub(r"`[^`]*`|[\d.]+% of the time\b", "", finding.title), finding.title


def test_names_in_titles_and_answers_are_short(analysis: Analysis) -> None:
    """Of at most 40 letters: everything between backticks, words, and the names of ranges, kernels and calls."""
    trace, texts = analysis.trace, [analysis.answer.text, *(finding.title for finding in analysis.findings)]
    columns = trace.ranges["name"], trace.operations["name"], trace.api["name"], trace.threads["name"]
    names = {text for column in columns for text in column.cast(pl.String).unique() if text and len(text) > 40}
    for text in texts:
        assert all(len(part) <= 40 for part in text.split("`")[1::2])
        assert all(len(word) <= 40 for word in text.split())
        assert not any(long in text for long in names)


def test_answer_is_short(analysis: Analysis) -> None:
    doubts = " ".join(first_sentences(analysis))  # what the capture lacks comes before the answer
    assert len(analysis.answer.text.removeprefix(doubts).split()) <= MAX_WORDS, analysis.answer.text
    assert "\n" not in analysis.answer.text and analysis.answer.text.split(". ")[0] in " ".join(
        render_brief(analysis).split()
    )


def test_wide_range_is_its_best_end() -> None:
    """Hand-made: a range that loses more than it gains, one as wide as the time, and a narrow one."""
    assert gain_words(Gain(22, -44, 46, "predicted", "also less host time, from 2 to 1", 100)) == (
        "at most 46.0% (may lose; also less host time)"
    )
    assert gain_words(Gain(90, 1, 94, "predicted", "", 100)) == "at most 94.0%"
    assert gain_words(Gain(10_000, 5_000, 20_000, "predicted", "", 100_000)).startswith("-10.0% (80.0")
    assert gain_words(Gain(16, 0, 16, "bound", f"no model; {OTHERS_LIMIT}", 100)) == f"at most 16.0% ({OTHERS_LIMIT})"
