"""What a trace says beside its events: its GPUs and its clock. The host, paths and users it names are not read."""

from __future__ import annotations

import json
from dataclasses import dataclass

from traceview.read.kineto.pieces import NotJsonError

LATEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Around:
    """`gpus` are (ordinal, name) pairs; `base_ns` is what its times count from, 0 for the Unix epoch."""

    gpus: tuple[tuple[int, str], ...]
    base_ns: int
    of_torch: bool


def read_around(text: bytes) -> Around:
    """Read the document that is left without its events. Raises NotJsonError."""
    try:
        found = json.loads(text.decode("utf-8", "replace"))
    except RecursionError:
        raise NotJsonError("is nested too deep") from None
    except json.JSONDecodeError as error:
        at_the_end = error.msg.startswith("Unterminated") or not error.doc[error.pos :].strip()
        raise NotJsonError("is no JSON around its events", cut_off=at_the_end) from None
    except ValueError:
        raise NotJsonError("holds an impossible number around its events") from None
    if not isinstance(found, dict) or found.get("traceEvents"):
        raise NotJsonError("has two lists of events")
    gpus = found.get("deviceProperties")
    named = [
        (one["id"], one["name"])
        for one in (gpus if isinstance(gpus, list) else ())
        if isinstance(one, dict) and type(one.get("id")) is int and isinstance(one.get("name"), str)
    ]
    base = found.get("baseTimeNanoseconds")
    return Around(
        # JSON can write half a character, which no frame holds.
        tuple((ordinal, name.encode("utf-8", "replace").decode()) for ordinal, name in named if abs(ordinal) < 1 << 31),
        base if type(base) is int and 0 <= base < LATEST else 0,
        bool({"schemaVersion", "deviceProperties", "distributedInfo"} & found.keys()),
    )
