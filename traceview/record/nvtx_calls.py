"""NVTX calls without the package nvtx: nsys names its injection library in the environment, and ctypes loads it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p

# nvtxDetail/nvtxTypes.h: the numbers of modules, callbacks and tables.
MODULES, CORE, CALLBACKS = range(1, 8), 1, 1
SLOTS = 17
PUSH, POP = 9, 11  # nvtxRangePushA, nvtxRangePop


class _Callbacks(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("table", c_void_p))


class Nvtx:
    """Push and pop of ranges; they do nothing where no profiler listens, as those of NVTX 3."""

    def __init__(self) -> None:
        """Load the injection library and let it fill a table of callbacks, as nvtxInit.h does. Raises OSError."""
        self.push: Callable[[bytes], object] = lambda _name: None
        self.pop: Callable[[], object] = lambda: None
        path = os.environ.get("NVTX_INJECTION64_PATH")
        if not path:
            return
        slots, unused = (c_void_p * SLOTS)(), (c_void_p * SLOTS)()
        tables = {module: _pointers(slots if module == CORE else unused) for module in MODULES}

        def table_of_module(module: int, table: list[int], size: list[int]) -> int:
            if module not in tables:
                return 0
            table[0], size[0] = ctypes.addressof(tables[module]), SLOTS - 1
            return 1

        function = ctypes.CFUNCTYPE(c_int, c_uint, POINTER(c_void_p), POINTER(c_uint))(table_of_module)
        callbacks = _Callbacks(ctypes.sizeof(_Callbacks), ctypes.cast(function, c_void_p).value)
        export = ctypes.CFUNCTYPE(c_void_p, c_uint)(
            lambda number: ctypes.addressof(callbacks) if number == CALLBACKS else None
        )
        library = ctypes.CDLL(path)
        self.kept = (slots, unused, tables, function, callbacks, export, library)
        filled = library.InitializeInjectionNvtx2(export)
        push, pop = slots[PUSH], slots[POP]
        if filled and push and pop:
            self.push, self.pop = ctypes.CFUNCTYPE(c_int, c_char_p)(push), ctypes.CFUNCTYPE(c_int)(pop)


def _pointers(slots: ctypes.Array[c_void_p]) -> ctypes.Array[c_void_p]:
    """Return a table of pointers to slots; the first entry is unused."""
    width = ctypes.sizeof(c_void_p)
    addresses = [ctypes.addressof(slots) + index * width for index in range(1, SLOTS - 1)]
    return (c_void_p * SLOTS)(None, *addresses)
