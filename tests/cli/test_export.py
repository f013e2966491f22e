"""`traceview export`: output paths, errors, windows and devices."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.captures import ROOT, sample
from tests.cli.command import Command, in_a_process
from tests.exporters.decode import decode
from tests.exporters.sums import add_up, idle_sums
from traceview.captures.export import FORMATS, collect
from traceview.captures.export.tables import FILES
from traceview.cli import export as export_command
from traceview.model.analysis import CAUSES
from traceview.model.trace import Window
from traceview.pipeline import analyze, open_trace


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "my.run.sqlite"
    path.parent.mkdir()
    shutil.copy(sample("cudagraph.sqlite"), path)
    return path


FORMS = [(name, f"my.run{suffix}") for name, suffix in FORMATS.items()]


@pytest.mark.parametrize(("form", "made"), FORMS)
def test_default_output_is_beside_the_report(form: str, made: str, report: Path, traceview: Command) -> None:
    assert traceview("export", report, "--format", form) == (0, f"{report.parent / made}\n", "")
    assert sorted(path.name for path in report.parent.iterdir()) == sorted([report.name, made])


def test_choices_are_the_formats() -> None:
    assert tuple(FORMATS) == export_command.FORMATS


def test_gzip_output_is_reproducible(report: Path, tmp_path: Path, traceview: Command) -> None:
    for name in ("plain", "one.gz", "two.gz"):
        assert traceview("export", report, "--format", "perfetto", "-o", tmp_path / name, "-q").out == ""
    assert gzip.decompress((tmp_path / "one.gz").read_bytes()) == (tmp_path / "plain").read_bytes()
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_standard_output(report: Path, tmp_path: Path, traceview: Command) -> None:
    arguments = ["export", str(report), "--format", "perfetto", "-o"]
    done = subprocess.run([sys.executable, "-m", "traceview", *arguments, "-"], capture_output=True, check=True)
    assert traceview(*arguments, tmp_path / "file", "-q").code == 0
    assert (done.stdout, done.stderr) == ((tmp_path / "file").read_bytes(), b"")


REFUSED = [
    (["--format", "json"], "'json' is not one of 'perfetto', 'parquet'"),
    (["--until", "300ms"], "No such option '--until'"),
    (["--format", "parquet", "-o", "-"], "--format parquet writes a folder of tables, not standard output"),
    (["--format", "perfetto", "-o", "{report}"], "my.run.sqlite: the inputs and the outputs must be different"),
    (["--format", "perfetto", "-o", "{folder}"], "is a folder; name a file in it"),
    (["--format", "parquet", "-o", "{file}"], "file: is a file, but this format writes a folder of tables"),
    (["--format", "parquet", "-o", "{folder}"], "contains other files (mine.txt); name a new folder"),
    (["--format", "parquet", "-o", "{folder}/no/where"], "its folder does not exist"),
    (["--format", "perfetto", "--from", "2ms", "--to", "1ms"], "--from 2ms --to 1ms: that window is empty"),
    (["--format", "perfetto", "--to", "soon"], "--to 'soon' is not a time"),
    (["--format", "perfetto", "--range", "x", "--from", "1ms"], "--range and --from/--to narrow the same window"),
    (["--format", "perfetto", "--range", "missing"], "no range is called 'missing'"),
    (["--format", "perfetto", "--device", "7"], "no device is called '7'; the capture has GPU 0"),
    (["--format", "perfetto", "-o", "/dev/full"], "full: cannot be written (No space left on device)"),
]


@pytest.mark.parametrize(("arguments", "reason"), REFUSED, ids=[" ".join(item) for item, _ in REFUSED])
def test_errors_are_one_line_and_change_nothing(
    arguments: list[str], reason: str, report: Path, tmp_path: Path, traceview: Command
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    file.write_text("mine")
    contents_before = file_contents(tmp_path)
    options = [item.format(report=report, folder=folder, file=file) for item in arguments]
    code, out, err = traceview("export", report, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert file_contents(tmp_path) == contents_before


def file_contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def test_older_export_is_replaced(report: Path, tmp_path: Path, traceview: Command) -> None:
    place = tmp_path / "tables"
    place.mkdir(mode=0o750)
    (place / "gaps.parquet").write_text("old")
    assert traceview("export", report, "--format", "parquet", "-o", place).code == 0
    assert sorted(path.name for path in place.iterdir()) == sorted(FILES)
    assert (place / "gaps.parquet").read_bytes() != b"old"
    assert place.stat().st_mode & 0o777 == 0o750
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "tables"]


FAILING_RUN = """
import sys
from traceview.captures.export import {module}
def fail(*_):
    raise {error}
{module}.{function} = fail
from traceview.__main__ import main
sys.argv = ["traceview", "export", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("error", "code"), [("KeyboardInterrupt", 130), ("OSError(28, 'No space left on device')", 2)])
@pytest.mark.parametrize(
    ("form", "module", "function"),
    [
        ("perfetto", "perfetto", "_counter_packets"),
        ("parquet", "tables", "declared_frame"),
    ],
)
def test_failed_write_keeps_the_old_output(
    form: str, module: str, function: str, error: str, code: int, report: Path, tmp_path: Path
) -> None:
    place = tmp_path / "out"
    if form == "parquet":
        place.mkdir()
        (place / "gaps.parquet").write_text("old")
    else:
        place.write_text("old")
    contents_before = file_contents(tmp_path)
    script = FAILING_RUN.format(module=module, function=function, error=error)
    ended = in_a_process(script, report, "--format", form, "-o", place)
    assert (ended.code, ended.out, ended.err.strip().count("\n")) == (code, "", 0)
    assert file_contents(tmp_path) == contents_before


def test_full_disk_with_parquet(report: Path, tmp_path: Path, traceview: Command) -> None:
    target = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        write = pl.DataFrame.write_parquet
        patch.setattr(pl.DataFrame, "write_parquet", lambda frame, _place: write(frame, "/dev/full"))
        code, _, err = traceview("export", report, "--format", "parquet", "-o", target)
    assert (code, err.count("\n")) == (2, 1)
    assert "out: cannot be written (No space left on device" in err
    assert not target.exists()


def test_window_has_its_figures() -> None:
    path = sample("dual.sqlite")
    uncut = open_trace(path)
    first = int(uncut.operations["start"][0])
    window = Window(first + 20_000_123, first + 41_000_456)
    contents, analysis = collect(uncut.with_window(window)), analyze(uncut, window=window)
    slices = decode(contents).slices
    assert all(window.start <= item.start <= item.end <= window.end for item in slices)
    idle = [item for item in slices if item.category == "idle"]
    sums = add_up(((item.row[0], item.name), item.end - item.start) for item in idle)
    assert {key: ns for key, (_, ns) in sums.items()} == idle_sums(analysis)
    (device,) = analysis.devices
    assert sum(item.category == "kernel" for item in slices) == device.kernel_count
    for use in device.streams:
        mine = [item for item in slices if item.row[-1] == use.label]
        assert sum(item.end - item.start for item in mine) == use.busy_ns


def test_range_and_device_narrow_the_tables(tmp_path: Path, traceview: Command) -> None:
    path, place = sample("ddp2.sqlite"), tmp_path / "tables"
    options = ("--range", "forward", "--device", "GPU 1")
    assert traceview("export", path, "--format", "parquet", "-o", place, *options).code == 0
    tables = {file.stem: pl.read_parquet(file) for file in place.iterdir()}
    analysis = analyze(path, range_name="forward", device="GPU 1")
    (device,) = analysis.devices
    assert tables["devices"]["busy_ns"].to_list() == [device.busy_ns]
    assert {cause: tables["gaps"][f"{cause}_ns"].sum() for cause in CAUSES} == device.gaps.causes
    assert set(tables["api"]["process"]) == set(tables["ranges"]["process"]) == set(device.process_ids)
    calls = set(tables["api"]["call"])
    assert set(tables["operations"]["call"].drop_nulls()) <= calls


def test_manual_names_every_option_and_format() -> None:
    from traceview.cli.export import export

    manual = (ROOT / "docs" / "export.md").read_text()
    options = [name for option in export.params for name in option.opts if name.startswith("--")]
    assert [name for name in [*options, *(f"`{name}`" for name in FORMATS)] if name not in manual] == []
