"""A copy of a capture that can be shared: every figure stays, the machine and its secrets go.

keep.py       what stays: tables, columns and rows; whatever is not named there goes
shapes.py     the patterns of secrets
secrets.py    finds and replaces them in many texts at once, with the capture's own host, user and keys
names.py      a name as it is in the copy: kept, or hashed
databases.py  the capture, read-only, and the new file
copy.py       makes the copy and checks it
"""

from traceview.redact.copy import Redacted, redact

__all__ = ["Redacted", "redact"]
