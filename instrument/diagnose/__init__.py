"""Where a training run loses its time, found by running its parts alone: `python -m instrument.diagnose`.

Six stages, from the bare model to the whole pipeline, timed in turns by the host's clock; what one adds to the other
is what it costs. A new stage is a line in `stages.STAGES`; what it means for the verdict stands in `verdict`.

    records.py         Row and Verdict: what is measured, what follows
    stages.py          STAGES; running.py: what all of them share; compute.py and feeding.py run them
    measure.py         five rounds in which the stages take turns; power.py reads NVML; ahead.py times the GPU alone
    costs.py           what an iteration of the pipeline consists of
    verdict.py         which of it is the most; remedies.py what to change, next_capture.py what to capture next
    table.py           the answer for a terminal; written.py the same as JSON

Nothing here is imported with the package: the records and the verdict need no torch, the stages do.
"""
