"""A second look through the command: the same to the byte, without an analysis, and never stale."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cache.conftest import settle
from tests.captures import ROOT, sample
from tests.cli.command import Command, Result, in_a_process
from traceview.cache import Store
from traceview.cli_analyze import FROM_CACHE
from traceview.model import Analysis
from traceview.report import library

NOTE = f"{FROM_CACHE}\n"
LIGHT = """
import sys
from traceview.program import main
sys.argv = ["traceview", "analyze", *sys.argv[1:]]
try:
    main()
finally:
    sys.stderr.write("heavy: " + ",".join(sorted({"polars", "numpy", "plotly"} & set(sys.modules))))
"""


@pytest.fixture(autouse=True)
def kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEVIEW_CACHE", str(store.root))


def refused(*_arguments: object, **_options: object) -> Analysis:
    raise AssertionError("analyzed again")


def outputs(report: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in report.parent.iterdir() if path.suffix in (".html", ".json")}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--no-html"], 0),
        (["--json", "-", "--no-html"], 0),
        (["--json", "{folder}/out.json", "--html", "{folder}/page.html", "--detail", "3MB"], 0),
        (["--no-html", "--fail-if", "exposed_h2d > 0%", "--fail-if", "gaps > 1", "--fail-if", "gaps > 1000000000"], 1),
        (["--no-html", "--from", "1ms", "--to", "90ms", "--skip", "1", "--top", "3", "--device", "0"], 0),
    ],
)
def test_a_second_look_is_the_same_to_the_byte(
    traceview: Command, report: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    arguments = [one.format(folder=report.parent) for one in arguments]
    monkeypatch.setenv("TRACEVIEW_CACHE", "off")
    fresh, made = traceview("analyze", report, *arguments), outputs(report)
    monkeypatch.setenv("TRACEVIEW_CACHE", str(report.parent / "cache"))
    first = traceview("analyze", report, *arguments)
    for path in report.parent.glob("*.html"):
        path.unlink()
    monkeypatch.setattr("traceview.cli_analyze.analysis_of", refused)
    second = traceview("analyze", report, *arguments)
    assert fresh == first and fresh.code == code
    assert second == Result(code, first.out, first.err + NOTE)
    assert outputs(report) == made


def test_quiet_says_nothing_of_it(traceview: Command, report: Path) -> None:
    for _ in range(2):
        assert traceview("analyze", report, "--quiet") == Result(0, "", "")


def test_a_hit_needs_neither_polars_nor_numpy(report: Path) -> None:
    heavy = [in_a_process(LIGHT, report).err.split("heavy: ")[1] for _ in range(2)]
    assert heavy == ["numpy,polars", ""]


def test_an_edited_report_is_analyzed_again(traceview: Command, report: Path) -> None:
    traceview("analyze", report, "--no-html")
    shutil.copyfile(sample("serial.sqlite"), report)
    settle(report)
    changed = traceview("analyze", report, "--no-html")
    assert changed == traceview("analyze", report, "--no-html", "--no-cache")
    assert traceview("analyze", report, "--no-html").err == NOTE


def test_a_damaged_entry_is_made_anew(traceview: Command, report: Path, store: Store) -> None:
    first = traceview("analyze", report, "--no-html")
    [entry] = [path for path in store.root.rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG"]
    whole = entry.read_bytes()
    entry.write_bytes(whole.replace(b"ms", b"us"))
    assert traceview("analyze", report, "--no-html") == first
    assert entry.read_bytes() == whole


def test_no_cache_neither_asks_nor_keeps(traceview: Command, report: Path, store: Store) -> None:
    traceview("analyze", report, "--no-html", "--no-cache")
    assert not store.root.exists()
    traceview("analyze", report, "--no-html")
    kept = store.entries()
    assert traceview("analyze", report, "--no-html", "--no-cache").err == ""
    assert store.entries() == kept


def test_plotly_is_kept_whatever_no_cache_says(
    traceview: Command, report: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pack in (library._packed, None):  # the second time there is nothing to pack
        monkeypatch.setattr(library, "_found", [])  # as in a process of its own
        monkeypatch.setattr(library, "_packed", pack)
        assert traceview("analyze", report, "--no-cache").code == 0
        assert len(store.entries()) == 1


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/x"])
def test_a_cache_that_cannot_be_written_is_no_error(
    traceview: Command, report: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("TRACEVIEW_CACHE", place)
    for _ in range(2):
        assert traceview("analyze", report, "--no-html")[0::2] == (0, "")


@pytest.mark.parametrize("arguments", [["--fail-if", "nonsense"], ["--html", "-"], ["--range", "a", "--from", "1ms"]])
def test_what_cannot_be_answered_is_not_kept(
    traceview: Command, report: Path, store: Store, arguments: list[str]
) -> None:
    both = [traceview("analyze", report, *arguments) for _ in range(2)]
    assert both[0] == both[1] and both[0].code == 2
    assert store.entries() == []


def test_places_are_checked_before_an_old_answer_is_written(traceview: Command, report: Path, tmp_path: Path) -> None:
    traceview("analyze", report)
    refused = traceview("analyze", report, "--html", tmp_path / "absent" / "page.html")
    assert refused.code == 2 and "does not exist" in refused.err
    assert traceview("analyze", report, "--html", report).code == 2
    assert report.read_bytes() == sample("dual.sqlite").read_bytes()


def test_two_analyses_at_once_keep_one_whole_answer(report: Path, store: Store, traceview: Command) -> None:
    command = [sys.executable, "-m", "traceview", "analyze", str(report), "--json", "-", "--no-html"]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate(timeout=120) for one in both]
    assert said[0][0] == said[1][0] and [one.returncode for one in both] == [0, 0]
    assert traceview("analyze", report, "--json", "-", "--no-html") == Result(0, said[0][0].decode(), NOTE)
    assert list(store.root.rglob("part-*")) == []


def test_the_cache_command(traceview: Command, report: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert traceview("cache") == Result(0, f"0 answers, 0.0 MB of at most 2000 MB, in {store.root}\n", "")
    monkeypatch.setattr(library, "_found", [])  # as in a process of its own
    traceview("analyze", report)
    assert traceview("cache").out.startswith("3 answers, ")  # summary, page, and plotly.js as pages hold it
    assert traceview("cache", "--clear").out.startswith("Removed ")
    assert store.entries() == [] and "no answers are kept" not in traceview("cache").out
    monkeypatch.setenv("TRACEVIEW_CACHE", "off")
    off = traceview("cache")
    assert off.code == 2 and "TRACEVIEW_CACHE is off" in off.err
