"""`python -m traceview` is `traceview`."""

from traceview.cli import main

main()
