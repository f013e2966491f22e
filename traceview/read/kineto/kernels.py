"""A kernel's short name, as nsys makes it from the whole one: no parameters, templates, namespaces, type."""

from __future__ import annotations

OPENING, CLOSING = "<([{", ">)]}"


def short_name(name: str) -> str:
    """Return `vectorized_elementwise_kernel` for `void at::native::vectorized_elementwise_kernel<4, ...>(int, ...)`."""
    kept: list[str] = []
    depth = 0
    for letter in name.replace("(anonymous namespace)::", ""):
        if letter in OPENING:
            if depth == 0 and letter == "(":
                break
            depth += 1
        elif letter in CLOSING:
            depth -= 1
        elif depth == 0:
            kept.append(letter)
    plain = "".join(kept).strip().rsplit("::", 1)[-1].rsplit(" ", 1)[-1]
    return plain or name
