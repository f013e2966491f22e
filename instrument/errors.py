"""Exceptions of this package.

InstrumentError     any problem that the user can fix
└── ConfigError     an invalid setting, or settings that exclude each other
"""

from __future__ import annotations


class InstrumentError(Exception):
    """A problem that the user can fix. The message is one line; the commands print it and exit with code 2."""


class ConfigError(InstrumentError):
    """A setting is unknown or invalid, alone or together with another one."""
