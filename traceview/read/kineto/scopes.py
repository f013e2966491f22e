"""The ops, modules and Python functions of a trace.

torch.profiler writes ops always, and modules and functions with with_stack=True. A module's name has a number for each
instance of its class. Functions of PyTorch and of Python's standard library are left out: they are not the program's.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from traceview.model.stacks import FUNCTION, MODULE, OP, SCOPE_KINDS
from traceview.read import raw
from traceview.read.kineto.identity import TraceIdentity
from traceview.read.limits import MAX_NAME

SCOPE = "scope"
CATEGORY = r'"cat"\s*:\s*"(?:cpu_op|Operator|python_function)"'
NAME_KEY = r'"name"\s*:\s*"'
# Frames of `python_function` that no program wrote; a path may remain before the package.
LIBRARY = rf"{NAME_KEY}(?:<|(?:[^\"]*/)?(?:torch/|(?:contextlib|functools|threading|typing|enum|weakref|abc)\.py\())"
PYTHON = r'"cat"\s*:\s*"python_function"'
MODULE_NAME = r"^nn\.Module: (.+)$"
FUNCTION_NAME = r"^(.*)\((\d+)\): (.*)$"
PYTHON_LIBRARY = r"lib(?:64)?/python\d+\.\d+"
PACKAGES_FOLDER = rf"/(?:{PYTHON_LIBRARY}/(?:site|dist)-packages|(?:site|dist)-packages|{PYTHON_LIBRARY})/(.+)$"
EVALUATION = "autograd::engine::evaluate_function"
SCHEMA = pl.Struct(
    dict.fromkeys(("ph", "cat", "name", "pid", "tid", "ts", "dur"), pl.String)
    | {"args": pl.Struct(dict.fromkeys(("Sequence number", "Fwd thread id"), pl.String))}
)
COLUMNS = ("pid", "tid", "start", "end", "name", "kind", "backward", "sequence", "forward_thread")
MAX_PATH_PARTS = 2  # parts that are kept of a path that is not relative to a package or to the program's folder


def scope_events(
    events: pl.Series, decode: Callable[[pl.Series, pl.Struct], pl.DataFrame], time: Callable[[pl.Expr], pl.Expr]
) -> list[pl.DataFrame]:
    """Return the scopes among the texts of events, in a frame if there are any.

    `decode` reads JSON, `time` turns decimal text in µs into ns.
    """
    events = events.filter(events.str.contains(CATEGORY))
    if events.is_empty():
        return []
    python = events.str.contains(PYTHON)
    if python.any():
        events = events.filter(~(python & events.str.contains(LIBRARY)))
    args = pl.col("args").struct
    module, function = pl.col("name").str.extract(MODULE_NAME), _function_name(pl.col("name"))
    is_python = pl.col("cat") == "python_function"
    from_engine = pl.col("name").str.starts_with(EVALUATION)
    kind = pl.when(~is_python).then(pl.lit(OP)).when(module.is_not_null()).then(pl.lit(MODULE))
    thread = args.field("Fwd thread id").cast(pl.Int64, strict=False)
    named = pl.when(is_python).then(pl.coalesce(module, function)).otherwise("name")
    scopes = (
        decode(events, SCHEMA)
        .filter(pl.col("ph") == "X")
        .select(
            pl.lit(SCOPE).alias("sort"),
            named.str.slice(0, MAX_NAME + 1).alias("name"),
            *(pl.col(name).cast(pl.Int64, strict=False) for name in ("pid", "tid")),
            time(pl.col("ts")).alias("start"),
            time(pl.col("dur")).alias("length"),
            kind.otherwise(pl.lit(FUNCTION)).replace_strict(SCOPE_KINDS, range(len(SCOPE_KINDS))).alias("kind"),
            ((thread > 0).fill_null(False) | from_engine).cast(pl.Int64).alias("backward"),
            args.field("Sequence number").cast(pl.Int64, strict=False).alias("sequence"),
            pl.when(thread > 0).then(thread).alias("forward_thread"),
        )
    )
    return [scopes.filter(pl.col("name").is_not_null())]


def _function_name(name: pl.Expr) -> pl.Expr:
    """Return `models/gpt.py:31 forward` of `/home/me/models/gpt.py(31): forward`; null for another form.

    A path that is not relative keeps what follows the folder of packages, or its last MAX_PATH_PARTS parts.
    """
    parts = name.str.extract_groups(FUNCTION_NAME).struct
    path = parts.field("1").str.replace_all("\\", "/", literal=True)
    installed = path.str.extract(PACKAGES_FOLDER)
    last = path.str.split("/").list.tail(MAX_PATH_PARTS).list.join("/")
    short = pl.when(path.str.contains(r"^(?:[/.~]|\w:)")).then(pl.coalesce(installed, last))
    return pl.format("{}:{} {}", short.otherwise(path), parts.field("2"), parts.field("3"))


def scope_table(scopes: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    """Return raw.SCOPES of a trace."""
    return scopes.with_columns(identity.global_tid(scopes), pl.col("name").alias("nameId")).select(
        raw.TABLES[raw.SCOPES].columns
    )
