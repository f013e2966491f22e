"""`python -m instrument.diagnose`: find where a training run loses time by measuring its parts separately.

Five stages, from the bare model to the complete pipeline, take turns. The difference between two stages is the cost of
what one adds to the other. A new stage is one entry in `stages.STAGES`.

    stages.py         STAGES, their implementation, and what they share
    measure.py        runs the stages in rounds
    costs.py          what is measured and what follows; splits an iteration of the pipeline into costs
    verdict.py        the largest cost, its remedy, and the capture to record next
    output.py         the result as a table and as JSON
"""
