"""What was removed, in words."""

from __future__ import annotations

from traceview.redact.copy import Redacted


def lines(done: Redacted) -> list[str]:
    """Return one line for each thing that is not in the copy, and what to look at before it is shared."""
    rows = [f"  {table}: {_many(count, 'row')}, {what}" for table, count, what in done.rows]
    columns = [f"  {_many(done.columns, 'column')} of the other rows, which no figure needs"] if done.columns else []
    serials = [f"  serial numbers of GPUs: {done.serial_numbers}"] if done.serial_numbers else []
    secrets = [f"  {kind}: {count} different" for kind, count in sorted(done.secrets.items())]
    removed = [*rows, *columns, *serials]
    return [
        *(["Removed:", *removed] if removed else ["Removed: nothing; the capture holds no more than a copy does."]),
        *(["Matched the pattern of a secret and replaced, each by a mark of its own:", *secrets] if secrets else []),
        *(["No known secret pattern matched a name that stays."] if not secrets else []),
        "A secret without a known pattern is not recognised (docs/redact.md lists the patterns).",
        "Names were hashed: who guesses a name can check it, and numbers of up to six digits stay."
        if done.hashed
        else "Names of kernels, NVTX ranges, threads and programs stay: read them, or use --names hash.",
        "Every figure is that of the capture.",
    ]


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
