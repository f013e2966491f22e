"""Names of ranges: names of libraries, and names that differ only in a counter (docs/definitions.md "Iterations")."""

from __future__ import annotations

import polars as pl

from traceview.measure.per_frame import once_per_frame
from traceview.model.trace import LIBRARY_DOMAINS

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
    domain = ranges["domain"].cast(pl.String)
    names = ranges["name"].cast(pl.String)
    unique = names.unique()
    library = unique.filter(unique.str.contains(LIBRARY_NAMES) & ~unique.str.contains(JITTED))
    return ranges.filter(~(domain.is_in(LIBRARY_DOMAINS) | names.is_in(library.implode())))


@once_per_frame
def phase_names(ranges: pl.DataFrame) -> pl.Series:
    """Return the name of the phase of each range: without the numbers that count the ranges of a thread.

    `ranges` is in the order of model.RANGES. The numbers in a name are a counter if they increase from range to
    range: `iteration 7` becomes `iteration #`, but `layer 0` to `layer 11` in each iteration stay as they are. The
    number of an iteration may restart in an outer loop, that of a layer may not.
    """
    kind = ranges.schema["name"]
    assert isinstance(kind, pl.Enum)
    texts = kind.categories
    folded = fold_numbers(texts)
    if (texts == folded).all():
        return ranges["name"].cast(pl.String)
    texts_of_codes = pl.DataFrame(
        {
            "text": texts,
            "folded": folded,
            "counters": _counters(texts),
            "number": folded.rank("dense"),
            "counts": folded.str.contains(COUNTER_WORDS),
            "is_part": folded.str.contains(PART_WORDS),
        }
    )
    frame = texts_of_codes[ranges["name"].to_physical()].with_columns(ranges["thread"])
    group = ("thread", "number")
    change = pl.lit(0, pl.Int8)
    for index in reversed(range(MAX_COUNTERS)):
        value = pl.col("counters").list.get(index, null_on_oob=True)
        step = (value - value.shift(1).over(group)).sign().cast(pl.Int8).fill_null(0)
        change = pl.when(step != 0).then(step).otherwise(change)
    changes = frame.with_columns(change.alias("change"))
    increases, restarts = ((pl.col("change") == sign).sum().over(group) for sign in (1, -1))
    increases_enough = increases >= MIN_INCREASING * (pl.len().over(group) - restarts - 1)
    may_restart = ((restarts <= MAX_RESTARTS) | pl.col("counts")) & ~pl.col("is_part")
    is_counter = increases_enough & ((restarts == 0) | may_restart)
    return changes.select(pl.when(is_counter).then("folded").otherwise("text").alias("phase")).to_series()


def _counters(names: pl.Series) -> pl.Series:
    """Return the numbers in each name, with their signs; null where a number is too large."""
    signed = names.str.replace_all(r"(^|[^\w.])-(\d+)", "${1}~${2}")
    numbers = signed.str.extract_all(r"~?\d+")
    digits = pl.element().str.replace("~", "-", literal=True).cast(pl.Int64, strict=False)
    return numbers.list.eval(digits)
