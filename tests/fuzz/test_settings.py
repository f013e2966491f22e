"""Settings of any kind: a file sets defaults, or is refused in one line that names it, however large its parts are."""

from __future__ import annotations

import random
from pathlib import Path

from traceview.cli.settings import MAX_BYTES, default_map, said_defaults
from traceview.errors import RequestError

CASES = 500
KEYS = ("iteration", "skip", "budgets", "redaction", "skipp", "tool", "a", '""', "x" * 70_000, "y" * 30_000, "a.b.c")
VALUES = (
    *("1", "-1", "true", "1e400", "nan", "1" * 4_000, "'step'", "'(a+)+$'", "'('", r"'\w{1000}'", "'(?=a)'", "''"),
    *("[]", "{}", "['idle > 1%']", "[[[]]]", "{analyze = ['idle > 1%']}", "{analyze = 3}", "2026-01-01", "'hash'"),
    *("'keep'", f"'{'z' * 50_000}'", "'''\n'''", "'\u202e'", "\\", "=", "[" * 5_000, "{" * 500),
)


def test_any_settings(tmp_path: Path) -> None:
    """A key of a megabyte took hours, because each letter was compared with those of the known keys."""
    chance, refused, said = random.Random(1), 0, 0
    (folder := tmp_path / "work").mkdir()
    for name in ("traceview.toml", "pyproject.toml"):
        path = tmp_path / name
        for _ in range(CASES):
            lines = [f"{chance.choice(KEYS)} = {chance.choice(VALUES)}" for _ in range(chance.choice((1, 1, 1, 2, 3)))]
            head = "[tool.traceview]\n" if name == "pyproject.toml" else ""
            path.write_text(text := head + "\n".join(lines))
            try:
                defaults = default_map(folder)
                line = said_defaults(folder, defaults, "analyze")
            except RequestError as error:
                refused += 1
                assert str(error).startswith(f"../{name}") and len(str(error)) < 600, text[:200]
            else:
                assert len(text) <= MAX_BYTES and len(line) < 300, text[:200]
                said += line.startswith(f"traceview: defaults from ../{name}")
        path.unlink()
    assert refused > CASES and said > CASES // 30
