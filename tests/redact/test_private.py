"""Values of the environment, project names under --names hash, diagnostics, and the kinds of detect-secrets."""

from __future__ import annotations

import html
import json
import sqlite3
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from detect_secrets.core.scan import scan_line
from detect_secrets.settings import default_settings

from tests.captures import sample
from tests.redact.figures import texts
from tests.redact.planted import KINDS
from traceview.captures.redact import redact
from traceview.captures.redact.secrets import NameRedactor, Secrets, words_of_settings

VALUE = 'mo"on sh&t/9é'
ENVIRONMENTS = (
    ("PROCESS_0:ENVIRONMENT_VARIABLE", 'USER="jane"', "jane"),
    ("PROCESS_0:ENVIRONMENT_VARIABLE", "HOME='/homes/jane'", "jane"),
    ("DeviceEnvironment", 'A=1;HOSTNAME="dgx07.lab";B=2', "dgx07"),
    ("DeviceEnvironment", "A=1\0API_TOKEN=hunter2\0B=2", "hunter2"),
    ("DeviceEnvironment", "WANDB_PROJECT=moonshot;B=2", "moonshot"),
    ("DeviceEnvironment", "PYTHONPATH=/raid/x/falconproj:/usr/lib", "falconproj"),
    ("PROCESS_0:ENVIRONMENT_VARIABLE", f'DB_PASSWORD="{VALUE}"', VALUE),
    ("PROCESS_0:WORKING_DIR", "/raid/x/moonshot", "moonshot"),
    ("PROCESS_0:USER_NAME", "jane", "jane"),
)


@pytest.mark.parametrize(("name", "value", "word"), ENVIRONMENTS)
def test_values_of_settings_are_private(name: str, value: str, word: str) -> None:
    secrets = Secrets(words_of_settings([(name, value)]))
    assert word not in secrets.clean(f"load {word} now")
    if word.isascii():
        assert word.upper() not in secrets.clean(f"run_{word.upper()}_x")


def test_password_in_the_next_argument_is_private() -> None:
    words = words_of_settings([("PROCESS_0:ARGUMENT_1", "--password"), ("PROCESS_0:ARGUMENT_2", "tigers4")])
    assert Secrets(words).clean("x tigers4 y") == "x [removed b 1] y"


@pytest.mark.parametrize(
    "written",
    [
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        quote(VALUE, safe=""),
        html.escape(VALUE),
        repr(VALUE),
        b64encode(VALUE.encode()).decode(),
    ],
)
def test_value_is_found_in_other_notations(written: str) -> None:
    secrets = Secrets({VALUE: "value of an environment variable"})
    assert written.strip("\"'=") not in secrets.clean(f"args {written} end")


@pytest.mark.parametrize("name", ["cutlass_80_tensorop_gemm", "iteration 4096", "aten::add", "python", "at::native::x"])
def test_public_words_of_the_environment_stay_in_names(name: str) -> None:
    variables = "A=cutlass;MAX_TOKENS=4096;USER=root;HOME=/root;B=tensorop gemm;_=/usr/bin/python;TOKENIZERS=false"
    assert Secrets(words_of_settings([("DeviceEnvironment", variables)])).clean(name) == name


def test_copy_has_no_value_of_its_environment(tmp_path: Path) -> None:
    report, copy = tmp_path / "report.sqlite", tmp_path / "copy.sqlite"
    report.write_bytes(sample("dual.sqlite").read_bytes())
    with closing(sqlite3.connect(report)) as export, export:
        export.execute("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'USER=\"jane\"')")
        export.execute("INSERT INTO StringIds VALUES (900001, ?)", ("A=1\0PROJECT=moonshot",))
        export.execute("UPDATE NVTX_EVENTS SET text = 'jane runs moonshot', textId = NULL WHERE rowid % 2 = 0")
        export.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, 0, 'SLI/NVLink; events dropped: 7 /raid/x/y', 0)")
    done = redact(report, copy)
    left = texts(copy)
    assert "jane" not in left and "moonshot" not in left and "/raid" not in left
    assert "SLI/NVLink; events dropped: 7" in left
    assert not any("no environment" in line for line in done.not_promised)
    hashed = tmp_path / "hashed.sqlite"
    redact(report, hashed, hash_names=True)
    assert "events dropped: 7" in texts(hashed) and "NVLink" not in texts(hashed)


@pytest.mark.parametrize(
    "name",
    [
        "moonshot::attention",
        "dlopen(libmoonshot.so)",
        "moonshotLaunch",
        "MoonshotBackward",
        "_allgather_moonshot",
        "autograd::engine::evaluate_function: MoonshotBackward",
        "open_moonshot",
    ],
)
def test_hashed_calls_have_no_name_of_the_project(name: str) -> None:
    redactor = NameRedactor(Secrets({}), hashed=True)
    assert "moonshot" not in redactor.call(name).lower() and "moonshot" not in redactor.range(name).lower()


def test_hashed_names_of_code_have_no_name_of_the_project() -> None:
    redactor = NameRedactor(Secrets({}), hashed=True)
    for name in ("lib/python3.11/site-packages/moonshot/model.py:20 forward", "moonshot/train.py:3 step"):
        assert "moonshot" not in redactor.code(name)
    assert redactor.code("torch/nn/modules/linear.py:114 forward") == "torch/nn/modules/linear.py:114 forward"
    assert "moonshot" not in redactor.range("moonshotFusion::run").lower()


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernel_v7000",
        "cuMemAlloc_v2",
        "aten::addmm",
        "AddmmBackward0",
        "allreduce",
        "_allgather_base",
        "pthread_cond_wait",
        "sem_timedwait",
        "poll",
        "fopen64",
        "MPI_Allreduce",
    ],
)
def test_hashing_keeps_public_calls(name: str) -> None:
    assert NameRedactor(Secrets({}), hashed=True).call(name) == name


def test_kinds_of_detect_secrets_are_found() -> None:
    """detect-secrets recognises planted secrets, and none of what it recognises is left in the cleaned texts."""
    secrets, left, count = Secrets({}), [], 0
    with default_settings():
        for kind, secret in KINDS.items():
            for line in (f'token = "{secret}"', f"load {secret} now"):
                found = [
                    match for match in scan_line(line) if "Entropy" not in match.type
                ]  # these are any quoted words
                cleaned = secrets.clean(line)
                count += len(found)
                left += [f"{kind}: {match.type}" for match in found if str(match.secret_value) in cleaned]
    assert count > 40 and left == []
