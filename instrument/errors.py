"""What can go wrong, as one line each.

    InstrumentError     anything a user can put right
    └── ConfigError     a value that is unknown, impossible, or impossible together with another
"""

from __future__ import annotations


class InstrumentError(Exception):
    """One line for the user: what is wrong, why, and what to do. The command exits with 2."""


class ConfigError(InstrumentError):
    """A value of the configuration that cannot be."""
