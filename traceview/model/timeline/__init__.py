"""The timeline of the page: rows, lanes of marks, and levels of detail."""

from __future__ import annotations
