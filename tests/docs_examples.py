"""The examples of docs/extending.md, so that tests run what the page shows."""

from __future__ import annotations

import re

from tests.captures import ROOT

CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = ("A measure", "A finding", "A what-if change")


def examples(section: str) -> tuple[str, str]:
    """Return the extension that a section of the page shows, and its test."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    [extension, test] = CODE.findall(page.partition(f"\n## {section}\n")[2].partition("\n## ")[0])
    return extension, test
