"""A copy of a capture that can be shared: it keeps every figure and drops private data.

keep.py           the tables, columns and rows that are kept; everything else is dropped
shapes.py         the patterns of secrets
secrets.py        finds and replaces secrets in texts; keeps or hashes names
copier.py         copies what is kept
write_copy.py     writes and checks the copy, and describes what was removed
"""

from traceview.redact.copier import Redacted
from traceview.redact.write_copy import redact, summary_lines

__all__ = ["Redacted", "redact", "summary_lines"]
