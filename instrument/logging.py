"""How a part says a line to whoever runs it: a function it is given, the log where it is given none."""

from __future__ import annotations

import logging
from collections.abc import Callable

Say = Callable[[str], None]
say_by_logging: Say = logging.getLogger("instrument").warning
