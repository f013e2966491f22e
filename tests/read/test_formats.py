"""The same capture in every format gives the same figures; errors are one line and leave no files."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests import profiling
from tests.captures import SAMPLES, analyzed, sample
from traceview.captures.info import describe
from traceview.captures.redact import redact
from traceview.errors import DamagedExportError, NotAnExportError, ReportError, RequestError, TraceviewError
from traceview.pipeline import analyze, open_trace
from traceview.read import nsys_rep
from traceview.read.formats import READERS, Reader
from traceview.read.kineto import KinetoReader
from traceview.read.nsys_rep import NsysReportReader
from traceview.read.parquet import TableFolderReader
from traceview.read.raw import STRINGS, TABLES
from traceview.read.source import read_head
from traceview.report.analysis import to_json

# The first bytes of a report of nsys; the rest is not a report.
REPORT = b"NVIDIA Tegra Profiler Report 2026@1@0@1-0v0." + bytes(200)
STREAM = b"U3w[END]NVIDIA Nsight Systems Stream 2024.2.3.38-242334140272v0!" + bytes(200)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set the folder for temporary files, and check that it is empty at the end."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


@pytest.fixture(scope="module")
def profiled(nsys: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a real report of a program that does nothing: it needs no GPU."""
    report = tmp_path_factory.mktemp("profiled") / "nothing.nsys-rep"
    profiling.profiled(nsys, report, "sleep", 0.1)
    return report


def figures(path: Path) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads(to_json(analyzed(path) if SAMPLES in path.parents else analyze(path)))
    assert actual["report"].pop("file") == path.name
    return actual


def says(error: type[TraceviewError], path: Path, *words: str) -> None:
    """Check that a capture is refused in one line with these words, and that nothing is written."""
    beside, before = sorted(path.parent.iterdir()), path.read_bytes() if path.is_file() else b""
    with pytest.raises(error) as caught:
        analyze(path)
    text = str(caught.value)
    assert "\n" not in text and path.stem.split(".")[0] in text
    assert [word for word in words if word not in text] == [], text
    assert sorted(path.parent.iterdir()) == beside and (not before or path.read_bytes() == before)


def zstd(data: bytes) -> bytes:
    compressed: bytes = pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    return compressed


def reader_of(path: Path) -> Reader:
    head = read_head(path)
    return next(reader for reader in READERS if reader.matches(path, head))


def smallest_samples(folder: Path) -> dict[type[Reader], Path]:
    """Return the smallest sample of each format with GPU work, decompressed into a folder."""
    smallest: dict[type[Reader], Path] = {}
    for path in sorted(SAMPLES.rglob("*.*"), key=lambda path: path.stat().st_size):
        if path.suffix not in (".md", ".c", ".py", ".xz") and path.parent.name != "mpi":
            plain = folder / path.name.removesuffix(".gz")
            plain.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
            smallest.setdefault(type(reader_of(plain)), plain)
    return smallest


def test_every_format(tmp_path: Path) -> None:
    """Read each format of READERS whole, compressed and cut short; a trace of torch.profiler is read up to the cut."""
    samples = smallest_samples(tmp_path)
    # A new format needs a sample; nsys makes its reports, and tests make folders of tables.
    assert {type(reader) for reader in READERS} == {*samples, TableFolderReader, NsysReportReader}
    for path in samples.values():
        whole = open_trace(path)
        assert len(whole.operations)
        content = path.read_bytes()
        packed = tmp_path / f"packed.{path.name}.gz"
        packed.write_bytes(gzip.compress(content, 1))
        again = open_trace(packed)
        for name in ("operations", "api", "ranges"):
            assert getattr(again, name).to_dicts() == getattr(whole, name).to_dicts()
        for share in (0.1, 0.5, 0.9):
            path.write_bytes(content[: int(len(content) * share)])
            if isinstance(reader_of(path), KinetoReader):
                assert any("no closing bracket" in line for line in open_trace(path).info.problems)
            else:
                says(TraceviewError, path)


PACKED = [("gz", gzip.compress), ("xz", lzma.compress), ("zst", zstd)]


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_compressed_exports(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"dual.sqlite.{suffix}"
    path.write_bytes(pack(sample("dual.sqlite").read_bytes()))
    assert figures(path) == figures(sample("dual.sqlite"))
    assert describe(path).tables == describe(sample("dual.sqlite")).tables
    assert list(tmp_path.iterdir()) == [path]


def test_names_do_not_matter(tmp_path: Path) -> None:
    misnamed = tmp_path / "dual.nsys-rep"
    misnamed.write_bytes(gzip.compress(sample("dual.sqlite").read_bytes()))
    assert figures(misnamed) == figures(sample("dual.sqlite"))
    shutil.copyfile(sample("dual.sqlite"), tmp_path / "plain")
    assert figures(tmp_path / "plain") == figures(sample("dual.sqlite"))


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
@pytest.mark.parametrize("share", [0.3, 0.99])
def test_truncated_compressed_exports(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], share: float
) -> None:
    path = tmp_path / f"cut.sqlite.{suffix}"
    content = pack(sample("cudagraph.sqlite").read_bytes())
    path.write_bytes(content[: int(len(content) * share)])
    says(DamagedExportError, path, "cut off")


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_decompression_bombs_are_refused(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceview.read.formats.MIN_SUSPICIOUS", 1 << 20)
    path = tmp_path / f"bomb.sqlite.{suffix}"
    path.write_bytes(pack(b"SQLite format 3\x00" + bytes(40 << 20)))
    says(ReportError, path, "200 times its size", f"bomb.sqlite.{suffix}")


def test_folder_is_no_capture(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    says(ReportError, tmp_path / "folder", "is a directory")


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceview.read.formats.MIN_FREE", 1 << 60)
    path = tmp_path / "dual.sqlite.gz"
    path.write_bytes(gzip.compress(sample("dual.sqlite").read_bytes(), 1))
    says(ReportError, path, "TMPDIR", "gunzip -k dual.sqlite.gz")


def test_invalid_compressed_files(tmp_path: Path) -> None:
    for name, data, word in (
        ("text.sqlite.gz", gzip.compress(b"hello"), "not an SQLite file"),
        ("empty.sqlite.gz", gzip.compress(b""), "is empty inside"),
        ("twice.sqlite.gz", gzip.compress(gzip.compress(b"x")), "compressed twice"),
    ):
        (tmp_path / name).write_bytes(data)
        says(NotAnExportError, tmp_path / name, word)


def test_zstd_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dual.sqlite.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))

    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("traceview.read.formats.importlib.import_module", absent)
    says(ReportError, path, "traceview[zstd]", "unzstd dual.sqlite.zst")


def as_directory(export: Path, folder: Path, suffix: str) -> Path:
    """Write an export's tables like nsys's parquetdir or arrowdir (hand-made: CI has no such export)."""
    folder.mkdir()
    connection = sqlite3.connect(f"{export.as_uri()}?mode=ro", uri=True)
    present = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in present & {*TABLES, "META_DATA_EXPORT"}:
        cursor = connection.execute(f'SELECT * FROM "{table}"')
        columns = [column for column, *_ in cursor.description]
        frame = pl.DataFrame(cursor.fetchall(), schema=columns, orient="row", infer_schema_length=None)
        # nsys writes ids without a sign, and in as many bits as they need.
        unsigned = [name for name in ("globalPid", "streamId") if name in columns]
        frame = frame.with_columns(pl.col(name).cast(pl.UInt64, wrap_numerical=True) for name in unsigned)
        path = folder / f"{table}{suffix}"
        _ = frame.write_parquet(path) if suffix == ".parquet" else frame.write_ipc_stream(path)
    connection.close()
    return folder


@pytest.mark.parametrize("name", ["dual.sqlite", "cudagraph.sqlite"])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_table_folders(tmp_path: Path, name: str, suffix: str) -> None:
    folder = as_directory(sample(name), tmp_path / "tables", suffix)
    assert figures(folder) == figures(sample(name))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_damaged_tables(tmp_path: Path, suffix: str) -> None:
    folder = as_directory(sample("cudagraph.sqlite"), tmp_path / "tables", suffix)
    path = folder / f"CUPTI_ACTIVITY_KIND_RUNTIME{suffix}"
    content = path.read_bytes()
    for damaged in (b"", b"PAR1 text", content[: len(content) // 2], content[:100] + bytes(5000) + content[5100:]):
        path.write_bytes(damaged)
        try:
            analyze(folder)
        except TraceviewError as error:
            assert "\n" not in str(error) and "CUPTI_ACTIVITY_KIND_RUNTIME" in str(error)
    path.write_bytes(content[: len(content) // 2])
    says(DamagedExportError, folder, "cut off or damaged")


def test_tables_of_wrong_types_and_too_many_rows(tmp_path: Path) -> None:
    folder = as_directory(sample("cudagraph.sqlite"), tmp_path / "tables", ".parquet")
    path = folder / "CUPTI_ACTIVITY_KIND_MEMCPY.parquet"
    content = pl.read_parquet(path)
    content.with_columns(pl.col("start").cast(pl.Float64)).write_parquet(path)
    assert any("CUPTI_ACTIVITY_KIND_MEMCPY" in note.text and "left out" in note.text for note in analyze(folder).notes)
    content.with_columns(pl.lit("x").alias("bytes")).write_parquet(path)
    assert any("wrong type" in note.text for note in analyze(folder).notes)
    content.drop("start").write_parquet(path)
    says(DamagedExportError, folder, "no column 'start'")
    pl.select(pl.repeat(0, 4_000_000).alias(content.columns[0])).select(
        pl.col(content.columns[0]).alias(name) for name in content.columns
    ).write_parquet(path)
    says(DamagedExportError, folder, "claims 4000000 rows")


def test_copy_and_info_of_a_folder(tmp_path: Path) -> None:
    as_directory(sample("cudagraph.sqlite"), tmp_path / "tables", ".parquet")
    redact(tmp_path / "tables", tmp_path / "copy.sqlite")
    assert figures(tmp_path / "copy.sqlite") == figures(sample("cudagraph.sqlite"))
    actual, expected = describe(tmp_path / "tables"), describe(sample("cudagraph.sqlite"))
    assert (actual.tables, actual.streams, actual.ranges) == (expected.tables, expected.streams, expected.ranges)


@pytest.mark.parametrize("name", ["report.nsys-rep", "old.qdrep"])
def test_text_named_like_a_report(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("hello")
    says(NotAnExportError, path, "not a report of Nsight Systems")


def test_raw_streams_are_refused(tmp_path: Path) -> None:
    for name in ("run.qdstrm", "run.nsys-rep"):
        (tmp_path / name).write_bytes(STREAM)
        says(NotAnExportError, tmp_path / name, "QdstrmImporter --input-file")


def script(folder: Path, text: str) -> str:
    """Write a fake nsys that behaves as a real one seldom does."""
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    before = nsys_rep.CHOSEN.get()
    yield lambda name: (nsys_rep.CHOSEN.set(name), None)[1]
    nsys_rep.CHOSEN.set(before)


def test_without_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: Callable[[str], None]) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    monkeypatch.setenv("PATH", str(tmp_path))
    says(ReportError, path, "not on PATH", "--nsys", "nsys export --type sqlite run.nsys-rep")
    chosen(str(tmp_path / "nowhere"))
    with pytest.raises(RequestError, match="--nsys: not an executable program"):
        analyze(path)


OLD = "echo NVIDIA Nsight Systems version 2024.2.3.38-242334140272v0"


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        (f'[ "$1" = --version ] && {OLD}; exit 1', ReportError, "nsys 2024.2.3 is too old"),
        (f"{OLD.replace('2024', '2027')}; exit 3", DamagedExportError, "exit code 3"),
        ("exit 0", ReportError, "does not report its version"),
        (f'{OLD.replace("2024", "2027")}; for last; do :; done; echo text > "$5"', NotAnExportError, "not an SQLite"),
    ],
)
def test_failing_nsys(
    tmp_path: Path, text: str, error: type[TraceviewError], word: str, chosen: Callable[[str], None]
) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    chosen(script(tmp_path, text))
    says(error, path, word)


def test_old_nsys_and_old_report(tmp_path: Path, chosen: Callable[[str], None]) -> None:
    """Until 2022, reports have their version at the end."""
    path = tmp_path / "run.qdrep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 1.\n" + bytes(5000) + b"\x1a\x122022.4.2.1-df9881f\x20")
    chosen(script(tmp_path, f'[ "$1" = --version ] && {OLD.replace("2024.2.3.38", "2020.4.3.7")}; exit 1'))
    says(ReportError, path, "made by nsys 2022.4.2; nsys 2020.4.3 is too old")


def test_nsys_exports_a_real_report(nsys: str, profiled: Path, tmp_path: Path, chosen: Callable[[str], None]) -> None:
    chosen(nsys)
    content = profiled.read_bytes()
    old = tmp_path / "-o old.qdrep"
    old.write_bytes(content)
    packed = tmp_path / "packed.nsys-rep.gz"
    packed.write_bytes(gzip.compress(content))
    export = tmp_path / "by_hand.sqlite"
    profiling.run(nsys, "export", "-t", "sqlite", "-o", export, profiled)
    expected = describe(export)
    for path in (profiled, old, packed):
        actual = describe(path)
        assert (actual.file, actual.schema_version) == (path.name, expected.schema_version)
        assert actual.tables == expected.tables and STRINGS in actual.tables
    assert profiled.read_bytes() == content
    cut = tmp_path / "cut.nsys-rep"
    cut.write_bytes(content[: len(content) // 2])
    says(DamagedExportError, cut, "cut off or damaged")
    newer = tmp_path / "newer.nsys-rep"
    newer.write_bytes(content.replace(b"Report 20", b"Report 90", 1))
    says(ReportError, newer, "is too old to read it")
