"""A copy of a capture that can be shared: every figure stays, the machine and its secrets go.

keep.py       what stays: tables, rows and columns of text; whatever is not named there goes
secrets.py    what looks like a secret in a name, and the capture's own host, user and keys
names.py      a name as it is in the copy: kept, or hashed
copy.py       the copy itself, made anew: nothing is in it that was not put there
"""

from traceview.redact.copy import Redacted, redact

__all__ = ["Redacted", "redact"]
