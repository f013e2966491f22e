"""Price findings: each lost nanosecond of a GPU is granted to at most one finding.

A device loses time when it does not compute. Findings cover its steady part, or its window if Analysis.whole. This time
less the compute time in it splits into accounts:

- idle time: one account for each pair of gap and cause (`host`, `launch`, `sync`, ...);
- exposed time: one account for each kind of work that runs while nothing computes (`communication`,
  `h2d pageable`, ..., `memset`).

A rule does not take time itself. It yields a FindingDraft with claims on accounts. The drafts are priced in the
order of rules.RULES, most specific cause first:

1. Ledger.grant returns what is left of the claimed accounts.
2. A draft below the reporting threshold (MIN_SHARE, `min_gaps`) is dropped. Its claims take nothing.
3. Ledger.deduct removes the granted time, so later rules cannot claim it again.
4. The granted time is the cost of the finding, and the largest pieces become its evidence.

So the costs of a device's findings add up to at most `idle_ns + busy_ns - compute_ns` of that time. What costs nothing
is a Note, which a rule yields beside its drafts.

    base.py         MeasuredCapture and GpuWork (what a rule reads), and FindingDraft (what it yields)
    ledger.py       claims, what is left of the accounts of a device, and grants
    texts.py        the entries of findings, for a program
    describe.py     from drafts to findings, where the host was, and stalls
    packages.py     rules of other packages
"""
