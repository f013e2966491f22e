"""The examples of docs/extending.md, so that tests run what the page shows."""

from __future__ import annotations

import re
import sys

from tests.captures import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^```toml\n# traceview/rules/texts/(\w+)\.toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = ("A measure", "A finding", "A what-if change")


def examples(section: str) -> tuple[str, str]:
    """Return the extension that a section of the page shows, and its test. A rule has its entry with it."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    [extension, test] = CODE.findall(text)
    for name, entry in ENTRY.findall(text):
        entries = {name: tomllib.loads(entry)}
        extension += f"\n\nfrom traceview.plugin import Rule\n\n{name} = Rule({name!r}, {name}, {entries!r})\n"
    return extension, test
