"""`python -m instrument.diagnose`."""

from instrument.diagnose.command import main

if __name__ == "__main__":
    main()
