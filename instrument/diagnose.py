"""`python -m instrument.diagnose`."""

from instrument.diagnosis.command import main

if __name__ == "__main__":
    main()
