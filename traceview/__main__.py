"""`python -m traceview` is `traceview`."""

from traceview.cli.process import run

if __name__ == "__main__":
    run()
