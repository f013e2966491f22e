"""`python -m traceview` is `traceview`."""

import os
import sys

# `python -m` puts the working folder first on the path: there a file json.py would run in place of Python's own module.
# A checkout that is not installed stays there.
if (
    __name__ == "__main__"
    and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    and sys.path[0] != os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - pathlib is not imported yet
):
    del sys.path[0]

from traceview.cli.process import run

if __name__ == "__main__":
    run()
