"""Numbers on the command line that no capture can have are refused in one line."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.cli.command import Command

CASES = [
    ("--to", "99999999999s"),
    ("--from", "-9223372036854775809"),
    ("--from", "@9223372036854775808ns"),
    ("--to", "2000000s"),
    ("--unprofiled-ms", "inf"),
    ("--unprofiled-ms", "nan"),
    ("--unprofiled-ms", "1e300"),
    ("--unprofiled-ms", "-1"),
    ("--unprofiled-ms", "0"),
]


@pytest.mark.parametrize(("option", "value"), CASES)
def test_impossible_numbers_are_refused_in_one_line(traceview: Command, report: Path, option: str, value: str) -> None:
    code, out, err = traceview("analyze", report, "--no-html", f"{option}={value}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert option in err and "internal error" not in err.lower()


@pytest.mark.parametrize(
    "command", ["analyze REPORT --no-html", "whatif REPORT", "compare REPORT REPORT", "info REPORT"]
)
def test_row_left_out_is_in_the_default_summary(traceview: Command, report: Path, command: str) -> None:
    with sqlite3.connect(report) as connection:
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'noon' WHERE rowid = 5")
    code, out, err = traceview(*(report if word == "REPORT" else word for word in command.split()))
    assert (code, err) == (0, "") and "1 row of CUPTI_ACTIVITY_KIND_KERNEL" in out
