"""What a copy's name says: `Memcpy HtoD (Pageable -> Device)`, in nsys's numbers.

The words are those of Kineto's cupti_strings.cpp, the numbers those of CUPTI's memcpy kinds and of nsys's
ENUM_CUDA_MEM_KIND.
"""

from __future__ import annotations

import re

NAME = re.compile(r"Memcpy (\w+|<unknown>)(?: \((.+) -> (.+)\))?")
KINDS = {
    "HtoD": 1,
    "DtoH": 2,
    "HtoA": 3,
    "AtoH": 4,
    "AtoA": 5,
    "AtoD": 6,
    "DtoA": 7,
    "DtoD": 8,
    "HtoH": 9,
    "PtoP": 10,
}
UNKNOWN = 7
MEMORIES = {
    "Pageable": 0,
    "Pinned": 1,
    "Device": 2,
    "Array": 3,
    "Managed": 4,
    "Device Static": 5,
    "Managed Static": 6,
}


def kind_and_memories(name: str) -> tuple[int, int, int]:
    """Return copyKind, srcKind and dstKind; 0 and UNKNOWN for what the name does not say."""
    found = NAME.fullmatch(name)
    if found is None:
        return 0, UNKNOWN, UNKNOWN
    kind, source, target = found.groups()
    return KINDS.get(kind, 0), MEMORIES.get(source, UNKNOWN), MEMORIES.get(target, UNKNOWN)
