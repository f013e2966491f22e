"""nsys export --type hdf, json and jsonlines: the figures of the SQLite export, or one clear line."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.captures import sample
from tests.profiling import profiled, run
from tests.read.as_exports import as_hdf, as_json
from tests.read.test_formats import figures, says
from traceview.analyze import analyze
from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.info import describe
from traceview.read import read_capture
from traceview.redact import redact
from traceview.trace import open_trace

NAMES = ["dual.sqlite", "cudagraph.sqlite", "trainer/ddp.sqlite"]


@pytest.mark.parametrize("name", NAMES)
def test_an_hdf5_export_has_the_figures_of_the_export(tmp_path: Path, name: str) -> None:
    pytest.importorskip("h5py")
    path = as_hdf(sample(name), tmp_path / "report.h5")
    assert figures(path) == figures(sample(name))
    assert describe(path).ranges == describe(sample(name)).ranges


def test_an_hdf5_export_of_2022(tmp_path: Path) -> None:
    """It has a data set that is no table, and its versions elsewhere."""
    h5py = pytest.importorskip("h5py")
    older = sample("mpi/ring_as_2022.4.sqlite")
    path = as_hdf(older, tmp_path / "report.h5")
    with h5py.File(path, "a") as file:
        file.create_dataset("UnwindMethodType", data=7)
    assert figures(path) == figures(older)
    assert describe(path).schema_version == "3.0.0"


@pytest.mark.parametrize("name", NAMES)
def test_a_json_export_has_the_figures_and_says_what_it_lacks(tmp_path: Path, name: str) -> None:
    found = figures(as_json(sample(name), tmp_path / "report.jsonl"))
    expected = figures(sample(name))
    lacks = [note for note in found.pop("notes") if note not in expected["notes"]]
    assert len(lacks) == 1 and "names of GPUs, default streams and versions are not in it" in lacks[0]
    del found["report"], expected["report"], expected["notes"]
    for figure in (found, expected):
        for device in figure["devices"]:
            del device["name"]
            for stream in device["streams"]:
                stream["label"] = stream["label"].removesuffix(" (default)")
    assert found == expected


def test_a_real_report_in_every_form(nsys: str, tmp_path: Path) -> None:
    report = tmp_path / "nothing.nsys-rep"
    profiled(nsys, report, "sleep", 0.1)
    made = {kind: tmp_path / f"report.{kind}" for kind in ("sqlite", "hdf", "json", "text", "info", "arrow")}
    for kind, path in made.items():
        run(nsys, "export", "-t", kind, "-o", path, report)
    expected = describe(made["sqlite"]).tables
    assert describe(made["hdf"]).tables == expected
    assert describe(made["json"]).tables["StringIds"] >= expected["StringIds"] > 0
    for kind in ("text", "info", "arrow"):
        says(NotAnExportError, made[kind], f"nsys export --type {kind}", "--type sqlite")


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))

    monkeypatch.setattr("traceview.read.hdf.importlib.util.find_spec", lambda name: None)
    says(ReportError, path, "traceview[hdf]", "--type sqlite")


def test_damaged_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = as_hdf(sample("cudagraph.sqlite"), tmp_path / "report.h5")
    whole = path.read_bytes()
    for size in (200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        says(DamagedExportError, path, "cut off or damaged")
    with h5py.File(path, "w") as file:
        file["numbers"] = [1, 2]
    says(NotAnExportError, path, "HDF5, but not as nsys exports it")


def test_hdf5_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One changed byte can make libhdf5 loop or crash (found by fuzzing): what reads it is a process of its own."""
    pytest.importorskip("h5py")
    path = as_hdf(sample("cudagraph.sqlite"), tmp_path / "report.h5")
    for child in ("while True: pass", "import os; os.abort()"):
        monkeypatch.setattr("traceview.read.child.START", child)
        monkeypatch.setattr("traceview.read.hdf.PATIENCE", 0.5)
        says(DamagedExportError, path, "cut off or damaged")


def test_modules_beside_an_hdf5_file_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("h5py")
    path = as_hdf(sample("cudagraph.sqlite"), tmp_path / "report.h5")
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert len(read_capture(path).tables)
    assert not (tmp_path / "imported").exists()


def test_an_hdf5_file_does_not_lead_elsewhere(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    other = as_hdf(sample("cudagraph.sqlite"), tmp_path / "other.h5")
    path = tmp_path / "report.h5"
    with h5py.File(path, "w") as file:
        file["StringIds"] = h5py.ExternalLink(str(other), "/StringIds")
    says(DamagedExportError, path, "cut off or damaged")
    with h5py.File(path, "w") as file:
        file.create_dataset("StringIds", (4,), "i8", external=[(str(other), 0, 32)])
    says(DamagedExportError, path, "cut off or damaged")
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "StringIds", (1 << 40,), [("id", "i8"), ("value", "i8")], chunks=(4096,), compression="gzip"
        )
    says(DamagedExportError, path, "more rows than the file can hold")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"startNs": "', '"startNs": "x', 1),
        lambda text: text.replace('{"Type": 48, "TraceProcessEvent": {', '{"Type": 48, "TraceProcessEvent": [' * 9, 1),
        lambda text: "\n".join(text.split("\n")[1:-2]),
        lambda text: text.replace('"files": []', '"files": ' + "[" * 100_000),
        # Seed 63000167.
        lambda text: text.replace('"nameIdx": "', '"nameIdx": "' + "9" * 300, 1),
    ],
)
def test_damaged_json(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    path = as_json(sample("cudagraph.sqlite"), tmp_path / "report.json")
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    says(DamagedExportError, path, "nsys export --type jsonlines")


def test_half_a_character_in_a_json_export(tmp_path: Path) -> None:
    path = as_json(sample("cudagraph.sqlite"), tmp_path / "report.json")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"iteration', '"\\ud800iteration'), encoding="utf-8")
    names = open_trace(path).ranges["name"].cast(pl.String)
    assert names.str.starts_with("?iteration").any() and not names.str.starts_with("iteration").any()


def test_redact_copies_an_hdf5_export(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = as_hdf(sample("cudagraph.sqlite"), tmp_path / "report.h5")
    redact(path, tmp_path / "copy.sqlite")
    assert figures(tmp_path / "copy.sqlite") == figures(sample("cudagraph.sqlite"))


def test_redact_says_what_it_needs(tmp_path: Path) -> None:
    path = as_json(sample("cudagraph.sqlite"), tmp_path / "report.json")
    with pytest.raises(NotAnExportError, match="a json export of nsys; this needs more of the report"):
        redact(path, tmp_path / "copy.sqlite")
    assert list(tmp_path.iterdir()) == [path]


def test_info_lists_what_a_json_export_lacks(tmp_path: Path) -> None:
    path = as_json(sample("cudagraph.sqlite"), tmp_path / "report.json")
    assert any("names of GPUs" in line for line in describe(path).missing)
    assert analyze(path).info.nsys_version is None
