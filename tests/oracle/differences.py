"""The differences between a document and the oracle's figures."""

from __future__ import annotations

from collections.abc import Iterator


def differences(expected: object, found: object, path: str = "") -> Iterator[str]:
    """Yield each place where `found` differs from `expected`. It may have more keys."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            yield f"{path}: {found!r} instead of an object"
            return
        for key, value in expected.items():
            if key not in found:
                yield f"{path}.{key}: missing"
            else:
                yield from differences(value, found[key], f"{path}.{key}")
    elif isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            yield f"{path}: {len(expected)} expected, found {len(found) if isinstance(found, list) else found!r}"
            return
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif type(expected) is not type(found) or expected != found:
        yield f"{path}: expected {expected!r}, found {found!r}"
