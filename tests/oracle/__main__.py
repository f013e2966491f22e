"""`python -m tests.oracle REPORT.sqlite > tests/golden/NAME.json` writes what the oracle computes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.oracle import figures

if len(sys.argv) != 2:
    sys.exit("usage: python -m tests.oracle REPORT.sqlite > tests/golden/NAME.json")
print(json.dumps(figures(Path(sys.argv[1])), indent=1, ensure_ascii=False))
