"""What was removed, in words."""

from __future__ import annotations

from traceview.redact.copy import Redacted


def lines(done: Redacted) -> list[str]:
    """Return one line for each thing that is not in the copy, and what to look at before it is shared."""
    rows = [f"  {table}: {_many(count, 'row')}, {what}" for table, count, what in done.rows]
    secrets = [f"  {kind}: {count} different" for kind, count in sorted(done.secrets.items())]
    serials = [f"  serial numbers of GPUs: {done.serial_numbers}"] if done.serial_numbers else []
    return [
        *(["Removed:", *rows, *serials] if rows or serials else ["Removed: nothing; it held no more than a copy does"]),
        *(["Found in names and replaced, each by a mark of its own:", *secrets] if secrets else []),
        *(["No secret was recognised in the names by its shape."] if not secrets else []),
        "Names were hashed: who guesses a name can check it, and numbers of up to six digits stay."
        if done.hashed
        else "Names of kernels, NVTX ranges, threads and programs stay: read them, or use --names hash.",
        "Every figure is that of the capture.",
    ]


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
