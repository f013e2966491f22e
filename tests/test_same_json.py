"""scripts/same-json names the values that differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.captures import ROOT, sample

SCRIPT = ROOT / "scripts" / "same-json"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_equal_and_changed_folders(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        assert run("write", folder, sample("cudagraph.sqlite"), tmp_path / "missing.sqlite").returncode == 0
    assert len(list(before.iterdir())) == 3  # JSON, page and the message on the missing file
    same = run("compare", before, after)
    assert (same.returncode, same.stdout) == (0, "3 files, 0 differ\n")
    [values] = after.glob("*.json")
    changed = json.loads(values.read_text())
    changed["devices"][0]["busy_ns"] += 1
    values.write_text(json.dumps(changed))
    [page] = after.glob("*.html")
    page.write_text(page.read_text().replace('"file":"cudagraph.sqlite"', '"file":"other"'))
    differ = run("compare", before, after)
    assert differ.returncode == 1
    assert f".devices[0].busy_ns: {changed['devices'][0]['busy_ns'] - 1} before" in differ.stdout
    assert 'content.file: "cudagraph.sqlite" before, "other" after' in differ.stdout
