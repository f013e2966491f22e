"""`python -m traceview` is `traceview`."""

from traceview.cli import run

if __name__ == "__main__":
    run()
