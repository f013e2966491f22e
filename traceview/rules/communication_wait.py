"""One rank is late and the others wait for it inside NCCL.

Symptom: the same collective takes long on one GPU and short on another.
Cause: a collective ends on all ranks together, so it is shortest on the rank that came last: the others
spent the difference waiting. The late rank had more to do, slower data, or a slower host.
Remedy: look at what the late rank does before the collective; the network is not at fault.

The k-th collective of each device is taken as one and the same, where all devices that communicate ran the
same names in the same order; durations are compared, so clocks need not agree. Claims, of each kernel's
exposed time, its first `duration - shortest duration` ns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import COMMUNICATION as CODE_OF
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, listed, many
from traceview.pricing.ledger import COMMUNICATION, Exposed

ADVICE = (
    "The wait is not the network's: faster links or larger buckets leave it as it is. Compare the "
    "two ranks: more tokens or uneven batches (bucket by length, `drop_last=True`), slower data "
    "loading, extra work on one rank (logging, checkpoints, evaluation), or a slower host (pin each "
    "rank to the cores beside its GPU). On a launch-bound loop the slower host is the usual one, and "
    "whatever makes launches cheaper helps both."
)
CODE = """# which cores are beside which GPU: nvidia-smi topo -m (here 4 GPUs a node)
torchrun --nproc-per-node=8 --no-python bash -c 'numactl -N $((LOCAL_RANK / 4)) python train.py'"""


def communication_wait(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each device that waits for another inside collectives."""
    devices = [device for device in facts.devices if device.use.communication.count]
    if len(devices) < 2 or not _alike(facts, devices):
        return
    rows = [np.flatnonzero(device.activity.codes == CODE_OF) for device in devices]
    spent = np.stack(
        [
            device.activity.end[row] - device.activity.start[row]
            for device, row in zip(devices, rows, strict=True)
        ]
    )
    shortest = spent.min(axis=0)
    last = spent.argmin(axis=0)
    for index, device in enumerate(devices):
        waited = spent[index] - shortest
        begin = device.activity.start[rows[index]]
        yield _draft(facts, device, devices, last[waited > 0], int(waited.sum()), _waits(begin, waited))


def _alike(facts: Facts, devices: list[DeviceFacts]) -> bool:
    """Say whether all devices ran the same communication kernels in the same order."""
    names = facts.analysis.trace.operations["name"].to_physical().to_numpy()
    runs = [names[device.activity.rows[device.activity.codes == CODE_OF]] for device in devices]
    return all(np.array_equal(runs[0], run) for run in runs)


def _waits(start: Times, waited: Times) -> Intervals:
    return intervals.union(start, start + waited)


def _draft(
    facts: Facts, device: DeviceFacts, devices: list[DeviceFacts], last: Times, waited: int, within: Intervals
) -> Draft:
    counts = np.bincount(last, minlength=len(devices))
    late = devices[int(counts.argmax())].use
    ranks = listed([str(process) for process in late.process_ids])
    total = device.use.communication
    return Draft(
        id="communication_wait",
        device=device,
        title=f"{device.use.id} waits for {late.id} in NCCL: {duration(waited)} of its "
        f"{duration(total.busy_ns)} of communication",
        advice=f"{late.id} (process {ranks}) came last in {int(counts.max())} of "
        f"{many(total.count, 'collective')}: there its kernel was the shortest, and {{cost}} of the "
        f"wait had nothing computing. {ADVICE}",
        code=CODE,
        claims=(Exposed((COMMUNICATION,), within),),
        place=f"waiting for {late.id} in a collective",
    )
