"""A configuration from a mapping of sections, as in a YAML file or a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from instrument.config.loading import _build, _flatten
from instrument.config.schema import Config


def from_sections(sections: Mapping[str, Any]) -> Config:
    return _build(_flatten(sections, ""), {})
