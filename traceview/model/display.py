"""How a result looks in a notebook. The package registers the module of its reports that shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_load: list[Callable[[], Any]] = []


def register(load: Callable[[], Any]) -> None:
    """Name what shows results: `load` returns the module with `html(result)` and `figures(result)`."""
    _load[:] = [load]


class Displayed:
    """A result that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        text: str = _load[0]().html(self)
        return text


class Drawn(Displayed):
    """A result that also has figures."""

    __slots__ = ()

    @property
    def figures(self) -> Any:
        """Figures for a notebook, as plotly objects: `analysis.figures.iterations()`, `fleet.figures.heat()`.

        The methods are those of AnalysisFigures and FleetFigures (traceview/report/notebook.py).
        """
        return _load[0]().figures(self)
