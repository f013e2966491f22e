"""`traceview export`: where things go, what is refused, and that a window's export has the window's figures."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from tests.captures import ROOT, sample
from tests.cli.command import Command, in_a_process
from tests.export.decode import decode
from tests.export.sums import added, of_idle
from traceview.export import FORMATS, collect
from traceview.export.csv import FILES
from traceview.model.analysis import CAUSES
from traceview.model.trace import Window
from traceview.pipeline import analyze, open_trace


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "my.run.sqlite"
    path.parent.mkdir()
    shutil.copy(sample("cudagraph.sqlite"), path)
    return path


@pytest.mark.parametrize(("form", "made"), [(form.name, f"my.run{form.suffix}") for form in FORMATS])
def test_the_default_place_is_beside_the_report_and_is_said(
    form: str, made: str, report: Path, traceview: Command
) -> None:
    assert traceview("export", report, "--to", form) == (0, f"{report.parent / made}\n", "")
    assert sorted(path.name for path in report.parent.iterdir()) == sorted([report.name, made])


def test_the_choices_of_the_command_are_the_formats() -> None:
    from traceview.cli.export import NAMES

    assert tuple(form.name for form in FORMATS) == NAMES


def test_a_packed_trace_holds_the_same_and_the_same_each_time(report: Path, tmp_path: Path, traceview: Command) -> None:
    for name in ("plain.json", "one.json.gz", "two.json.gz"):
        assert traceview("export", report, "--to", "chrome", "-o", tmp_path / name, "-q").out == ""
    assert gzip.decompress((tmp_path / "one.json.gz").read_bytes()) == (tmp_path / "plain.json").read_bytes()
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_standard_output_gets_the_trace_alone(report: Path, traceview: Command) -> None:
    code, out, err = traceview("export", report, "--to", "chrome", "-o", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["traceEvents"]


REFUSED = [
    (["--to", "json"], "is no format; choose one of perfetto, chrome, csv, parquet"),
    (["--to", "300ms"], "the end of the window is --until"),
    ([], "Missing option '--to'"),
    (["--to", "csv", "-o", "-"], "--to csv is a folder of tables, which standard output cannot take"),
    (["--to", "chrome", "-o", "{report}"], "my.run.sqlite: the reports and the outputs must be different"),
    (["--to", "chrome", "-o", "{folder}"], "is a folder; name a file in it"),
    (["--to", "parquet", "-o", "{file}"], "file: is a file, and this format is a folder of tables"),
    (["--to", "csv", "-o", "{folder}"], "holds other things (mine.txt); name a new folder"),
    (["--to", "csv", "-o", "{folder}/no/where"], "the folder it should go into does not exist"),
    (["--to", "perfetto", "--from", "2ms", "--until", "1ms"], "--from and --until leave an empty window"),
    (["--to", "perfetto", "--until", "soon"], "--until 'soon' is not a time"),
    (["--to", "perfetto", "--range", "x", "--from", "1ms"], "--range and --from/--until narrow the same window"),
    (["--to", "perfetto", "--range", "nobody"], "no NVTX range is called 'nobody'"),
    (["--to", "perfetto", "--device", "7"], "no device is called '7'; the capture has GPU 0"),
    (["--to", "chrome", "-o", "/dev/full"], "full: cannot be written (No space left on device)"),
]


@pytest.mark.parametrize(("arguments", "reason"), REFUSED, ids=[" ".join(one) for one, _ in REFUSED])
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    arguments: list[str], reason: str, report: Path, tmp_path: Path, traceview: Command
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    file.write_text("mine")
    before = everything(tmp_path)
    given = [one.format(report=report, folder=folder, file=file) for one in arguments]
    code, out, err = traceview("export", report, *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert everything(tmp_path) == before


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def test_an_older_export_is_replaced_as_a_whole(report: Path, tmp_path: Path, traceview: Command) -> None:
    place = tmp_path / "tables"
    place.mkdir(mode=0o750)
    (place / "gaps.csv").write_text("old")
    assert traceview("export", report, "--to", "csv", "-o", place).code == 0
    assert sorted(path.name for path in place.iterdir()) == sorted(FILES)
    assert (place / "gaps.csv").read_text() != "old"
    assert place.stat().st_mode & 0o777 == 0o750
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "tables"]


BREAKS = """
import sys
from traceview.export import {module}
def breaks(*_):
    raise {error}
{module}.{function} = breaks
from traceview.cli.process import main
sys.argv = ["traceview", "export", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("error", "code"), [("KeyboardInterrupt", 130), ("OSError(28, 'No space left on device')", 2)])
@pytest.mark.parametrize(
    ("form", "module", "function"),
    [("perfetto", "perfetto", "_counted"), ("chrome", "chrome", "_counted"), ("csv", "csv", "safe")],
)
def test_what_breaks_on_the_way_leaves_the_old_and_nothing_half_written(
    form: str, module: str, function: str, error: str, code: int, report: Path, tmp_path: Path
) -> None:
    place = tmp_path / "out"
    if form == "csv":
        place.mkdir()
        (place / "gaps.csv").write_text("old")
    else:
        place.write_text("old")
    before = everything(tmp_path)
    script = BREAKS.format(module=module, function=function, error=error)
    ended = in_a_process(script, report, "--to", form, "-o", place)
    assert (ended.code, ended.out, ended.err.strip().count("\n")) == (code, "", 0)
    assert everything(tmp_path) == before


def test_a_full_disk_is_said_for_parquet_too(report: Path, tmp_path: Path, traceview: Command) -> None:
    target = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        write = pl.DataFrame.write_parquet
        patch.setattr(pl.DataFrame, "write_parquet", lambda frame, _place: write(frame, "/dev/full"))
        code, _, err = traceview("export", report, "--to", "parquet", "-o", target)
    assert (code, err.count("\n")) == (2, 1)
    assert "out: cannot be written (No space left on device" in err
    assert not target.exists()


def test_the_export_of_a_window_has_the_figures_of_that_window() -> None:
    path = sample("dual.sqlite")
    whole = open_trace(path)
    first = int(whole.operations["start"][0])
    window = Window(first + 20_000_123, first + 41_000_456)
    of, analysis = collect(whole.narrowed(window)), analyze(whole, window=window)
    slices = decode(of).slices
    assert all(window.start <= one.start <= one.end <= window.end for one in slices)
    idle = [one for one in slices if one.category == "idle"]
    sums = added(((one.row[0], one.name), one.end - one.start) for one in idle)
    assert {key: ns for key, (_, ns) in sums.items()} == of_idle(analysis)
    (device,) = analysis.devices
    assert sum(one.category == "kernel" for one in slices) == device.kernel_count
    for use in device.streams:
        mine = [one for one in slices if one.row[-1] == use.label]
        assert sum(one.end - one.start for one in mine) == use.busy_ns


def test_a_range_and_a_device_narrow_the_tables(tmp_path: Path, traceview: Command) -> None:
    path, place = sample("ddp2.sqlite"), tmp_path / "tables"
    asked = ("--range", "forward", "--device", "GPU 1")
    assert traceview("export", path, "--to", "parquet", "-o", place, *asked).code == 0
    tables = {file.stem: pl.read_parquet(file) for file in place.iterdir()}
    analysis = analyze(path, range_name="forward", device="GPU 1")
    (device,) = analysis.devices
    assert tables["devices"]["busy_ns"].to_list() == [device.busy_ns]
    assert {cause: tables["gaps"][f"{cause}_ns"].sum() for cause in CAUSES} == device.gaps.causes
    assert set(tables["api"]["process"]) == set(tables["ranges"]["process"]) == set(device.process_ids)
    calls = set(tables["api"]["call"])
    assert set(tables["operations"]["call"].drop_nulls()) <= calls


def test_the_manual_names_every_option_and_format() -> None:
    from traceview.cli.export import export

    manual = (ROOT / "docs" / "export.md").read_text()
    options = [name for option in export.params for name in option.opts if name.startswith("--")]
    assert [name for name in [*options, *(f"`{form.name}`" for form in FORMATS)] if name not in manual] == []
