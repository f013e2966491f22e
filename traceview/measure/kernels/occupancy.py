"""How a launch fills a GPU: blocks per SM, waves and theoretical occupancy (docs/definitions.md "Kernels").

The rules are those of cudaOccupancyMaxActiveBlocksPerMultiprocessor; an SM gives as much shared memory as it can.
"""

from __future__ import annotations

from traceview.frozen import frozen

WARP = 32
REGISTER_UNIT = 256  # registers are given to a warp in units of this size, from compute capability 3.0 on
WARP_UNIT = 4  # an SM has four register files, each for a quarter of the warps
SHARED_UNIT, SHARED_UNIT_BEFORE_8 = 128, 256  # bytes
RESERVED_SHARED = 1024  # bytes per block that CUDA keeps for itself, from compute capability 8.0 on


@frozen
class SmLimits:
    """The limits of one SM (Trace.devices), and the number of SMs. `capability` is 90 for 9.0."""

    sms: int
    warps: int
    registers: int
    shared_bytes: int
    blocks: int
    capability: int


@frozen
class Occupancy:
    """Resident blocks and warps of one SM. `limit` is what bounds them; None if a launch fills all warps."""

    blocks: int
    fraction: float
    limit: str | None


def occupancy(limits: SmLimits, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """Return the occupancy of blocks with `threads` threads; None if no block fits, so that the data contradict it."""
    if threads <= 0:
        return None
    warps = -(-threads // WARP)
    bounds = {
        "threads": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": _blocks_by_registers(limits, warps, registers),
        "shared_memory": _blocks_by_shared_memory(limits, shared_bytes),
    }
    limit = min(bounds, key=lambda name: bounds[name])
    resident = bounds[limit]
    if resident <= 0:
        return None
    fraction = resident * warps / limits.warps
    return Occupancy(resident, fraction, None if resident * warps == limits.warps else limit)


def _blocks_by_registers(limits: SmLimits, warps: int, registers: int) -> int:
    if registers <= 0:
        return limits.blocks
    each = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    resident_warps = limits.registers // WARP_UNIT // each * WARP_UNIT
    return resident_warps // warps


def _blocks_by_shared_memory(limits: SmLimits, shared_bytes: int) -> int:
    recent = limits.capability >= 80
    unit = SHARED_UNIT if recent else SHARED_UNIT_BEFORE_8
    each = -(-(shared_bytes + (RESERVED_SHARED if recent else 0)) // unit) * unit
    return limits.shared_bytes // each if each else limits.blocks
