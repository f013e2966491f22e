"""Rows of the tables of kernels (docs/definitions.md "Kernels")."""

from __future__ import annotations

from traceview.frozen import frozen
from traceview.model.columns import column, derived


def size_text(sizes: tuple[int, ...] | None) -> str | None:
    """Return "16x4" for (16, 4, 1)."""
    if sizes is None:
        return None
    last = max((place for place, size in enumerate(sizes) if size != 1), default=0)
    return "x".join(str(size) for size in sizes[: last + 1])


@frozen
class KernelUse:
    """Kernels of one name and launch shape. None stands for data that the capture or the name does not contain."""

    name: str = column("code", "short name", "Name without namespaces, templates and parameters.")
    demangled: str | None = column("code", "full name", "Name with namespaces, templates and parameters.")
    label: str = column(
        "code", "kernel", "Short name. A generic kernel also has the operation that its template names."
    )
    family: str | None = column("text", "family", "What the kernel computes, from its name.")
    precision: str | None = column("text", "precision", "Type of its inputs, from its name.")
    tensor_core: bool | None = column("flag", "tensor cores", "Whether it uses tensor cores, from its name.")
    count: int = column("count", "count", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    mean_ns: int = column("ns", "mean", "Total over count, rounded down.", merge="none")
    min_ns: int = column("ns", "shortest", "Length of the shortest.", merge="min")
    max_ns: int = column("ns", "longest", "Length of the longest.", merge="max")
    share: float = column("fraction", "share", "Part of the summed kernel time of the device.")
    grid: tuple[int, ...] | None = column("size", "grid", "Blocks in x, y and z.")
    block: tuple[int, ...] | None = column("size", "block", "Threads of a block in x, y and z.")
    registers: int | None = column("count", "registers", "Registers of a thread.", merge="key")
    shared_bytes: int | None = column(
        "bytes", "shared memory", "Static and dynamic shared memory of a block.", merge="key"
    )
    blocks_per_sm: float | None = column("ratio", "blocks per SM", "Blocks over the device's SMs.")
    waves: float | None = column("ratio", "waves", "Blocks over the blocks that the device holds at once.")
    occupancy: float | None = column("fraction", "occupancy", "Resident warps over the warps that an SM can hold.")
    occupancy_limit: str | None = column("text", "limited by", "What limits the occupancy; - where nothing does.")

    @derived("text", "grid", "Blocks in x, y and z.")
    def grid_text(self) -> str | None:
        return size_text(self.grid)


@frozen
class KernelPlace:
    """Kernels of one name that one place in the program launches. None stands for data that the capture lacks."""

    kernel: str = column("code", "kernel", "Name, as `label` in the table of kernels.")
    family: str | None = column("text", "family", "What the kernel computes, from its name.")
    range: str | None = column(
        "text", "range", "Innermost NVTX range at the launch that is neither an op nor a module, without its counter."
    )
    module: str | None = column(
        "text", "module", "Path of the module; for a backward kernel, the module of its forward."
    )
    op: str | None = column(
        "code", "op", "Outermost op below the module; for a backward kernel, the op of its forward."
    )
    inner_op: str | None = column("code", "inner op", "Innermost op at the launch.")
    line: str | None = column("code", "line", "Innermost Python function outside torch: file, line, name.")
    direction: str | None = column("text", "direction", "forward, backward or optimizer.")
    count: int = column("count", "count", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    share: float = column("fraction", "share", "Part of the summed kernel time of the device.")


@frozen
class ModuleUse:
    """Kernels of one op in one module, in one direction. None stands for data that the capture lacks."""

    place: str = column("text", "module and op", "Path of the module, and the outermost op below it.")
    direction: str | None = column("text", "direction", "forward, backward or optimizer.")
    count: int = column("count", "kernels", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    share: float = column("fraction", "share", "Part of the summed kernel time of the device.")


@frozen
class KernelFamily:
    """Kernels of one family."""

    family: str = column("text", "family", "What the kernels compute, from their names.")
    count: int = column("count", "count", "Number of kernels.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    busy_ns: int = column("ns", "busy", "Length of the union of the kernels.")
