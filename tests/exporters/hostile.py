"""A hand-made capture with names that would break a format."""

from __future__ import annotations

from pathlib import Path

from tests.build_export import Call, Kernel, Nvtx, ThreadName, build_export

NAMES = (
    "\"quotes' and \\ and `",
    "two\nlines\r\nand\ta tab",
    "return\ralone",
    "NUL \0 inside",
    "\u202eright to left\u202c تدريب",
    "</script><script>alert(1)</script>",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "'quoted",
    "comma, semicolon; and | bar",
    "🚀\u2028\ufeff",
    " ",
    "x" * 100_000,
)


def hostile_export(path: Path) -> Path:
    """Write a kernel, a call and a range for each name, and a kernel whose name is half a surrogate pair."""
    count = len(NAMES) + 1
    return build_export(
        path,
        kernels=[
            Kernel(100 * row + 10, 100 * row + 60, name, correlation=row + 1)
            for row, name in enumerate([*NAMES, "replaced"])
        ],
        api=[Call(100 * row, 100 * row + 9, "cudaLaunchKernel", correlation=row + 1) for row in range(count)],
        nvtx=[Nvtx(100 * row, 100 * row + 90, text=name) for row, name in enumerate(NAMES)],
        threads=[ThreadName(NAMES[5])],
        statements=["UPDATE StringIds SET value = CAST(x'EDA080' AS TEXT) WHERE value = 'replaced'"],
    )
