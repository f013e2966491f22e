"""The JSON Schema of each command's document, as `scripts/json-schema` makes it."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from typing import Any

from tests.captures import ROOT

SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = runpy.run_path(str(ROOT / "scripts" / "json-schema"))["SCHEMAS"]
