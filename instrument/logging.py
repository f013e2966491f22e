"""The callback that parts of the trainer report one-line messages to, and its default: Python's logging."""

from __future__ import annotations

import logging
from collections.abc import Callable

LogFunction = Callable[[str], None]
log_warning: LogFunction = logging.getLogger("instrument").warning
