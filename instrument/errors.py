"""Exceptions of this package, and the callback that its parts report one-line messages to.

InstrumentError     any problem that the user can fix
└── ConfigError     an invalid setting, or settings that exclude each other
"""

from __future__ import annotations

import logging
from collections.abc import Callable

LogFunction = Callable[[str], None]
log_warning: LogFunction = logging.getLogger("instrument").warning


class InstrumentError(Exception):
    """A problem that the user can fix. The message is one line; the commands print it and exit with code 2."""


class ConfigError(InstrumentError):
    """A setting is unknown or invalid, alone or together with another one."""
