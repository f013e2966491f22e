"""`python -m traceview` is `traceview`."""

from traceview.cli import main

if __name__ == "__main__":
    main()
