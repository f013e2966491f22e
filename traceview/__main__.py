"""`python -m traceview` is `traceview`."""

from traceview.program import run

if __name__ == "__main__":
    run()
