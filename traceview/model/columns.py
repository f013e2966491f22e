"""Columns and tables: a measure declares them once, and every report derives its form from them (docs/extending.md).

A row of a measure is a frozen dataclass. `column` makes each field that reports show, and `derived` each figure that
follows from others. The JSON holds the fields; terminal, page and CSV show the columns that `Table.shown` names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from traceview.model.frozen import dataclass

if TYPE_CHECKING:
    from pathlib import Path

Unit = Literal[
    "text",
    "code",
    "id",
    "count",
    "ns",
    "bytes",
    "fraction",
    "ratio",
    "bytes_per_ns",
    "flops",
    "flops_per_s",
    "causes",
    "flag",
    "size",
]
Row = TypeVar("Row")

METADATA_KEY = "traceview.column"


class Column(NamedTuple):
    """One figure of a row: its name in the JSON, its unit, its heading in tables, and what it means."""

    name: str
    unit: Unit
    title: str
    description: str


class DerivedColumn(property):
    """A property that tables show; the JSON leaves it out, because it follows from other columns."""

    unit: Unit
    title: str
    description: str


def column(unit: Unit, title: str, description: str, *, default: Any = dataclasses.MISSING) -> Any:
    """Return a dataclass field that declares a column."""
    return dataclasses.field(default=default, metadata={METADATA_KEY: (unit, title, description)})


def derived(unit: Unit, title: str, description: str) -> Callable[[Callable[[Any], Any]], DerivedColumn]:
    """Return a decorator that declares a property as a column. Its value is None where it is undefined."""

    def declare(function: Callable[[Any], Any]) -> DerivedColumn:
        declared = DerivedColumn(function, doc=description)
        declared.unit, declared.title, declared.description = unit, title, description
        return declared

    return declare


def partial_row(row_type: type[Row], **figures: Any) -> Row:
    """Return a row with these figures, such as one for all rows beyond a limit; its other fields are None."""
    return row_type(**{field.name: None for field in dataclasses.fields(row_type)} | figures)  # type: ignore[arg-type]


def field_names(row_type: type) -> tuple[str, ...]:
    """Return the names of the fields that a row type declares as columns: what the JSON holds."""
    return tuple(field.name for field in dataclasses.fields(row_type) if METADATA_KEY in field.metadata)


def columns(row_type: type) -> tuple[Column, ...]:
    """Return the columns that a row type declares, the derived ones last."""
    fields = [
        Column(field.name, *field.metadata[METADATA_KEY])
        for field in dataclasses.fields(row_type)
        if METADATA_KEY in field.metadata
    ]
    properties = [
        Column(name, value.unit, value.title, value.description)
        for name, value in vars(row_type).items()
        if isinstance(value, DerivedColumn)
    ]
    return (*fields, *properties)


# How a result is shown and written: the package registers the module above the reports that does it.
_load: list[Callable[[], Any]] = []


def register(load: Callable[[], Any]) -> None:
    """Name what shows and writes results: `load` returns the module traceview.api."""
    _load[:] = [load]


def writer() -> Any:
    """Return the module that shows and writes results."""
    return _load[0]()


class Displayed:
    """A result that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        text: str = writer().html(self)
        return text


class Documented(Displayed):
    """A result that is also a document."""

    __slots__ = ()

    def __repr__(self) -> str:
        text: str = writer().representation(self)
        return text

    def to_json(self) -> str:
        """Return the JSON that the command with --json writes (docs/schema.md): ns, bytes and fractions."""
        text: str = writer().to_json(self)
        return text

    def to_markdown(self) -> str:
        """Return the answer and its tables as GitHub's Markdown. Names from a capture are escaped."""
        text: str = writer().to_markdown(self)
        return text


class Paged(Documented):
    """A result that also has a page."""

    __slots__ = ()

    def to_html(self, path: str | Path) -> None:
        """Write the page that the command writes, one offline HTML file. Raises OutputError."""
        writer().to_html(self, path)


@dataclass(frozen=True, slots=True)
class Table(Displayed):
    """A measure's rows, with the declaration that every report derives its form from.

    `name` is the table's key in the JSON. `shown` names the columns that terminal and page show, in their order; ()
    shows all. A `single` table always has one row, and is an object in the JSON. A table that is not `in_json` repeats
    what the JSON holds elsewhere; one that is not `listed` is in the JSON only. The summary shows `first` rows if
    the reader does not ask for another number. `not_measured` is the reason for missing rows. `package` is the name and
    version of the package whose measure it is; "" for measures of traceview. `optional` names columns that are shown if
    a row has a value.
    """

    name: str
    title: str
    row_type: type
    note: str = ""
    shown: tuple[str, ...] = ()
    single: bool = False
    in_json: bool = True
    listed: bool = True
    first: int | None = None
    rows: tuple[Any, ...] = ()
    not_measured: str | None = None
    package: str = ""
    optional: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        row_type: Any = self.row_type
        if isinstance(vars(row_type).get("__slots__"), tuple):  # help() reads descriptions from a dict of slots
            described = {column.name: f"{column.description} Unit: {column.unit}." for column in columns(row_type)}
            row_type.__slots__ = {name: described.get(name) for name in row_type.__slots__}

    def __repr__(self) -> str:
        return f"<{self.title}: {len(self.rows):,} rows>"

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that terminal and page show."""
        declared = {column.name: column for column in columns(self.row_type)}
        names = self.shown or tuple(declared)
        empty = {name for name in self.optional if all(getattr(row, name) is None for row in self.rows)}
        return tuple(declared[name] for name in names if name not in empty)

    @property
    def shown_rows(self) -> tuple[Any, ...]:
        """The rows that terminal and page show: rows that count zero events stay in the JSON only."""
        return tuple(row for row in self.rows if getattr(row, "count", 1))

    def with_rows(self, rows: tuple[Any, ...]) -> Table:
        """Return the table filled with rows."""
        return replace(self, rows=rows)

    def unmeasured(self, reason: str) -> Table:
        """Return the table without rows."""
        return replace(self, not_measured=reason)
