"""The public interface: functions, documents and tables of results, representations and help()."""

from __future__ import annotations

import inspect
import json
import os
import pydoc
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import traceview as package
from tests.captures import ROOT, analyzed, sample
from tests.exporters.hostile import hostile_export
from tests.pages import inputs_of
from tests.ranks.reports import merged, ranks_of
from tests.report.made_analysis import bare_analysis, made_analysis
from traceview import analyze, compare, export, fleet, open_trace, whatif
from traceview.errors import OutputError, RequestError
from traceview.model.analysis import DeviceUse, Iterations, NotMeasured
from traceview.model.findings import Gain
from traceview.model.rows import KernelUse, StreamUse
from traceview.model.whatif import Prediction, WhatIf
from traceview.report.analysis.page import render

FUNCTIONS = (analyze, compare, export, fleet, open_trace, whatif)
DUAL = sample("dual.sqlite")
OPTIONS = {"top": 3, "whole": True}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions_are_documented_and_typed(function: object) -> None:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    text = inspect.getdoc(function) or ""
    assert signature.return_annotation is not signature.empty
    assert all(parameter.annotation is not parameter.empty for parameter in signature.parameters.values())
    assert "Raises" in text
    named = [name for name in signature.parameters if name not in ("report", "path", "before", "reports")]
    assert [name for name in named if not re.search(rf"\b{name}\b", text)] == []
    assert "(*" not in pydoc.plain(pydoc.render_doc(function)).splitlines()[2].replace("(*reports", "")


def test_folder_stands_for_its_capture(tmp_path: Path) -> None:
    for name in ("rank3", "rank0"):
        (tmp_path / f"{name}.json.gz").symlink_to(sample(f"fsdp_tp/{name}.json.gz"))
    with pytest.warns(UserWarning, match=r"has the traces of ranks 0, 3; this is rank 0, rank0\.json\.gz") as warned:
        assert analyze(tmp_path).info.file == "rank0.json.gz"
    assert warned[0].filename == __file__ and len(warned) == 1
    (tmp_path / "rank0.json.gz").unlink()
    assert open_trace(tmp_path).info.file == "rank3.json.gz"
    for name in ("a.sqlite", "b.sqlite"):
        (tmp_path / name).symlink_to(DUAL)
    with pytest.raises(RequestError, match=r"with 3 captures; name one, for example .*a\.sqlite"):
        whatif(tmp_path)


@pytest.mark.parametrize("from_input", [True, False])
def test_fleet_in_a_plain_script(tmp_path: Path, *, from_input: bool) -> None:
    """Its processes do not run the script again: it needs no `__name__ == "__main__"`, and no file."""
    ranks = [str(path) for path in ranks_of("slowhost")[:2]]
    script = tmp_path / "script.py"
    script.write_text(f"import traceview\nprint(len(traceview.fleet(*{ranks!r}, workers=2).ranks))\n")
    command = [sys.executable, *([] if from_input else [str(script)])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, input=script.read_text(), env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


PUBLIC = [getattr(package, name) for name in package.__all__]
RESULTS = [*filter(is_dataclass, PUBLIC), DeviceUse, Gain, Iterations, Prediction]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.__name__)
def test_help_describes_each_field(result: type) -> None:
    documented = "".join(inspect.getdoc(base) or "" for base in result.__mro__[:-1] if is_dataclass(base))
    described = dict(re.findall(r"^    (\w+): ((?:.+\n?)(?:      .+\n?)*)", documented, re.MULTILINE))
    assert [field.name for field in fields(result) if field.name not in described] == []
    assert [
        name for name, text in described.items() if name.endswith("_ns") and "ns" not in text.split("_ns")[-1]
    ] == []


@pytest.mark.parametrize("row", [KernelUse, StreamUse])
def test_help_describes_columns_with_their_units(row: type) -> None:
    text = pydoc.plain(pydoc.render_doc(row))
    assert re.search(r"total_ns\n +\|  +.+ Unit: ns\." if row is KernelUse else r"busy_ns\n +\|  +.+ Unit: ns\.", text)


def test_representations_have_five_lines(tmp_path: Path) -> None:
    analysis = analyze(hostile_export(tmp_path / "hostile.sqlite"))
    ranks = merged(ranks_of("slowhost"))
    results = [analysis, made_analysis("\n\x1b[31m"), bare_analysis(), ranks, compare(analysis, analysis)]
    predicted = whatif(analyzed(DUAL))
    assert isinstance(predicted, WhatIf)
    for result in (*results, predicted):
        lines = repr(result).splitlines()
        assert 2 <= len(lines) <= 5 and max(map(len, lines)) <= 402
        assert all(line.isprintable() for line in lines)
    assert "dual.sqlite" in repr(predicted) and "straggler" in repr(ranks)


def test_documents_are_those_of_the_commands(tmp_path: Path) -> None:
    analysis = analyze(DUAL, **OPTIONS)
    assert json.loads(analysis.to_json())["whole"] is True
    analysis.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render(inputs_of(analysis))
    comparison, ranks = compare(analysis, analysis), merged(ranks_of("slowhost"))
    ranks.to_html(tmp_path / "ranks.html")
    assert "</html>" in (tmp_path / "ranks.html").read_text(encoding="utf-8")
    for result in (comparison, ranks):
        assert json.loads(result.to_json())["schema_version"] == 1
    with pytest.raises(OutputError):
        analysis.to_html(tmp_path / "missing" / "page.html")


def test_markdown_has_the_answer_and_no_markup_of_the_capture(tmp_path: Path) -> None:
    analysis = analyzed(DUAL)
    assert analysis.answer.text in analysis.to_markdown()
    assert f"| {analysis.findings[0].title} |" in analysis.to_markdown()
    text = analyze(hostile_export(tmp_path / "hostile.sqlite")).to_markdown()
    assert not re.search(r"(?<!\\)<(?!!-- -->)", text)
    assert "## " not in text.replace("### ", "", 1) and all(line.isprintable() for line in text.splitlines())


def test_tables_are_frames() -> None:
    analysis = analyzed(DUAL)
    device = analysis.devices[0]
    kernels = analysis.table("kernels")
    assert kernels["total_ns"].sum() == sum(row.total_ns for row in analysis.covered(device).tables["kernels"].rows)
    assert kernels["device"].unique().to_list() == [device.id]
    assert analysis.table("streams")["gap_ns"].sum() == sum(row.gap_ns for row in device.streams)
    for name in (*analysis.tables, *device.tables):
        if (analysis.tables.get(name) or device.tables[name]).not_measured is None:
            assert analysis.table(name).columns
    with pytest.raises(RequestError, match=r"no table is called 'kernel'; choose from .*kernels"):
        analysis.table("kernel")


def test_whatif_takes_a_path_and_an_analysis() -> None:
    named, given = whatif(DUAL), whatif(analyzed(DUAL), ranks=2, gradient_bytes=253_000_000)
    assert not isinstance(named, NotMeasured) and not isinstance(given, NotMeasured)
    assert {row.change for row in given.predictions} - {row.change for row in named.predictions} == {"ranks:2"}
    assert named.predictions[0].title in named.to_markdown()
    with pytest.raises(RequestError, match="belong together"):
        whatif(DUAL, ranks=2)


def test_export_writes_each_kind(tmp_path: Path) -> None:
    for name, path in (("iteration 3", "part"), (None, "whole")):
        export(analyzed(DUAL), tmp_path / f"{path}.pftrace", range_name=name)
    assert 0 < (tmp_path / "part.pftrace").stat().st_size < (tmp_path / "whole.pftrace").stat().st_size / 4
    command = [sys.executable, "-m", "traceview", "export", str(DUAL), "-o", str(tmp_path / "command.pftrace")]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    export(DUAL, tmp_path / "function.pftrace")
    written = [(tmp_path / f"{name}.pftrace").read_bytes() for name in ("command", "function", "whole")]
    assert written[0] == written[1] == written[2]
    export(DUAL, tmp_path / "tables", format="parquet")
    assert (tmp_path / "tables" / "kernels.parquet").is_file()
    with pytest.raises(RequestError, match="format='svg': choose perfetto"):
        export(DUAL, tmp_path / "x", format="svg")  # type: ignore[arg-type]
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(DUAL.read_bytes())
    with pytest.raises(OutputError):
        export(copy, copy)


def test_names_are_not_modules_and_import_loads_no_polars() -> None:
    script = "import sys, traceview\n"
    script += "print('polars' in sys.modules, 'numpy' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert loaded.split() == ["False", "False"]
    assert all(inspect.isfunction(getattr(package, function.__name__)) for function in FUNCTIONS)


def test_results_have_short_texts() -> None:
    """What a notebook or an interactive Python shows of a result fits a screen."""
    analysis = analyzed(sample("dual.sqlite"))
    text = repr(analysis.trace)
    assert len(text.splitlines()) <= 5 and "operations 7,060" in text and "dual.sqlite" in text
    tables = repr(analysis.tables)
    assert len(tables) < 2000 and "<Synchronizations: 3 rows>" in tables
