"""`python -m instrument.diagnose`: find where a training run loses time.

The model alone and the complete pipeline take turns; the pipeline's own meter and its loader's gauge state what feeding
the model takes.

    stages.py         what runs
    measure.py        runs it in rounds
    costs.py          what is measured and what follows; splits an iteration of the pipeline into costs
    verdict.py        the largest cost, its remedy, and the capture to record next
    output.py         the result as a table and as JSON
"""
