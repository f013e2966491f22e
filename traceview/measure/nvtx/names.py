"""Names of ranges: names of libraries, and names that differ only in a counter (docs/definitions.md "Iterations")."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.per_frame import once_per_frame
from traceview.model.trace import LIBRARY_DOMAINS, enum_texts

LIBRARY_NAMES = (
    r"^(aten|autograd|torch|c10d|cudnn|cublas|cub|thrust|executor_utils|GpuLower|\w*Fusion\w*)::|^nccl:"
    r"|\bop_id\b|^MPI_|^P?nccl[A-Z]|^## Call CompiledFxGraph|^Torch-Compiled Region|^CompiledFunction"
    r"|^Optimizer\.|^enumerate\(DataLoader\)|^DistributedDataParallel\.forward|^autograd|^(XlaModule|Thunk|TSL):"
    r"|^gc generation \d$"
)
# A function that JAX compiled, such as `jit_step`. XLA numbers these, and not the modules that it only tries.
JITTED = r"^XlaModule:#hlo_module=p?jit_.*program_id="
SIGNED_NUMBER, NUMBER = r"(^|[^\w.])-\d+", r"\d+"
MAX_COUNTERS = 4  # numbers in a name that are compared
MIN_INCREASING = 0.9
MAX_RESTARTS = 2  # a loop may run again, for example after its warm-up
# Words before a number that counts on in an outer loop, and before one that numbers the parts of a model.
COUNTER_WORDS, PART_WORDS = r"(?i)iter|step|batch|epoch|token|frame", r"(?i)layer|block|stage|level|chunk"


def fold_numbers(names: pl.Series) -> pl.Series:
    """Replace numbers with `#`: `iteration 7` and `iteration -3` become `iteration #`.

    A dash inside a word is not a sign.
    """
    return names.str.replace_all(SIGNED_NUMBER, "${1}#").str.replace_all(NUMBER, "#")


@once_per_frame
def without_library_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """Leave out the ranges of libraries; `ranges` is model.RANGES."""
    domains, names = enum_texts(ranges["domain"]), enum_texts(ranges["name"])
    of_library = domains.is_in(LIBRARY_DOMAINS), names.str.contains(LIBRARY_NAMES) & ~names.str.contains(JITTED)
    other_domain, other_name = ((~mask).to_numpy() for mask in of_library)
    return ranges.filter(
        pl.Series(other_domain[_codes(ranges["domain"])] & other_name[_codes(ranges["name"])], dtype=pl.Boolean)
    )


@once_per_frame
def phase_names(ranges: pl.DataFrame) -> pl.Series:
    """Return the name of the phase of each range: without the numbers that count the ranges of a thread.

    `ranges` is in the order of model.RANGES. The numbers in a name are a counter if they increase from range to
    range: `iteration 7` becomes `iteration #`, but `layer 0` to `layer 11` in each iteration stay as they are. The
    number of an iteration may restart in an outer loop, that of a layer may not. The column is an Enum of the names
    that are used, in the order of the alphabet.
    """
    texts, code = enum_texts(ranges["name"]), _codes(ranges["name"])
    folded = fold_numbers(texts)
    has_number = (texts != folded).to_numpy()
    phases = pl.concat([texts, folded])
    if has_number.any():
        rows = np.flatnonzero(has_number[code])
        counted = _are_counted(code[rows], ranges["thread"].to_numpy()[rows], texts, folded)
        code = code.astype(np.int64)
        code[rows[counted]] += len(texts)
    used = np.bincount(code, minlength=len(phases)) > 0
    names = phases.filter(pl.Series(used)).unique().sort()
    return phases.set(pl.Series(~used), None).cast(pl.Enum(names))[code].alias("phase")


def _are_counted(code: NDArray[Any], thread: NDArray[Any], texts: pl.Series, folded: pl.Series) -> NDArray[np.bool_]:
    """Return which of some ranges have a counter in their name; `code` is the name's place in `texts`."""
    name = folded.rank("dense").to_numpy().astype(np.int64)[code]
    order = np.lexsort((name, thread))
    begins = (np.diff(thread[order], prepend=-1) != 0) | (np.diff(name[order], prepend=-1) != 0)
    group, code = np.cumsum(begins) - 1, code[order]
    change = np.zeros(len(code), np.int8)
    for value, known in reversed(_counters(texts)):
        number, compared = value[code], known[code] & ~begins
        compared[1:] &= known[code[:-1]]
        for sign, differs in ((1, number[1:] > number[:-1]), (-1, number[1:] < number[:-1])):
            change[1:][compared[1:] & differs] = sign
    lengths, increases, restarts = (
        np.bincount(group, weights) for weights in (None, (change == 1).astype(float), (change == -1).astype(float))
    )
    first = folded[code[begins]]
    counts, is_part = (first.str.contains(words).to_numpy() for words in (COUNTER_WORDS, PART_WORDS))
    may_restart = (restarts == 0) | ((restarts <= MAX_RESTARTS) | counts) & ~is_part
    is_counter = (increases >= MIN_INCREASING * (lengths - restarts - 1)) & may_restart
    counted = np.empty(len(code), np.bool_)
    counted[order] = is_counter[group]
    return counted


def _counters(names: pl.Series) -> list[tuple[Times, NDArray[np.bool_]]]:
    """Return the first numbers in each name, with their signs; false where there is none, or it is too large."""
    signed = names.str.replace_all(r"(^|[^\w.])-(\d+)", "${1}~${2}")
    texts = signed.str.extract_all(r"~?\d+")
    columns = (texts.list.get(index, null_on_oob=True) for index in range(MAX_COUNTERS))
    counters = [column.str.replace("~", "-", literal=True).cast(pl.Int64, strict=False) for column in columns]
    return [(counter.fill_null(0).to_numpy(), counter.is_not_null().to_numpy()) for counter in counters]


def _codes(column: pl.Series) -> NDArray[Any]:
    return column.to_physical().to_numpy()
