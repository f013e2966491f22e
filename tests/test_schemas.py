"""The JSON Schemas describe the JSON of each command exactly: outputs of samples, and changed ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tests.captures import ROOT, SAMPLES
from tests.cli.command import Command
from tests.schemas import SCHEMAS
from traceview.cli import COMMANDS, cli

CASES = {
    "analyze dual": ("analyze", "--no-html", "dual.sqlite"),
    "analyze ddp2": ("analyze", "--no-html", "ddp2.sqlite"),
    "analyze torch": ("analyze", "--no-html", "torch_profiler/serial.json.gz"),
    "analyze openacc": ("analyze", "--no-html", "openacc"),
    "compare": ("compare", "serial.sqlite", "dual.sqlite", "cudagraph.sqlite"),
    "whatif": ("whatif", "serial.sqlite"),
    "fleet": ("fleet", "--no-html", "--workers", "1", "ranks"),
    "fleet of one": ("fleet", "--no-html", "--workers", "1", "ddp2.sqlite"),
    "info": ("info", "dual.sqlite"),
    "export": ("export", "--format", "parquet", "-o", "OUT", "cudagraph.sqlite"),
    "redact": ("redact", "cudagraph.sqlite", "OUT"),
    "info torch": ("info", "torch_profiler/graph.json.gz"),
}


def document(traceview: Command, folder: Path, *words: str) -> Any:
    outputs = {"OUT": str(folder / "out")}
    given = [str(SAMPLES / word) if (SAMPLES / word).exists() else outputs.get(word, word) for word in words]
    if words[-1] == "openacc":
        given[-1] = str(next(path for path in sorted(Path(given[-1]).iterdir()) if ".sqlite" in path.name))
    code, out, err = traceview(*given, "--json", "-")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("case", CASES)
def test_outputs_fit(traceview: Command, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = document(traceview, tmp_path, *CASES[case])
    schema = SCHEMAS[case.split()[0]]()
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(found)
    assert [key for key in schema["properties"] if key in found] == list(found)
    for wrong in ({**found, "more": 1}, {key: value for key, value in found.items() if key != "notes"}):
        if wrong != found:
            with pytest.raises(ValidationError):
                Draft202012Validator(schema).validate(wrong)


def test_every_command_has_a_document() -> None:
    assert set(SCHEMAS) == {*COMMANDS} - {"mcp"}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert any("--json" in option.opts for option in command.params) == (name != "mcp"), name


def test_script_writes_the_schemas(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "json-schema", tmp_path], check=True, timeout=300)
    for name, schema in SCHEMAS.items():
        written = json.loads((tmp_path / f"{name}.json").read_text())
        assert written == json.loads(json.dumps(schema())) and written["title"] == f"traceview {name}"


def test_columns_have_their_descriptions() -> None:
    device = SCHEMAS["analyze"]()["properties"]["devices"]["items"]["properties"]
    exposed = device["copies"]["items"]["properties"]["exposed_ns"]
    assert exposed["type"] == "integer" and exposed["title"] == "exposed" and exposed["description"]
