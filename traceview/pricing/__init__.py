"""Price findings: each lost nanosecond of a GPU is granted to at most one finding.

A device loses time when it does not compute. Its window less its compute time splits into accounts:

- idle time: one account for each pair of gap and cause (`host`, `launch`, `sync`, ...);
- exposed time: one account for each kind of work that runs while nothing computes (`communication`,
  `h2d pageable`, ..., `memset`).

A rule does not take time itself. It yields a FindingDraft with claims on accounts. The drafts are priced in the
order of traceview.rules.RULES, most specific cause first:

1. Ledger.grant returns what is left of the claimed accounts.
2. A draft below the reporting threshold (MIN_SHARE, `min_gaps`) is dropped. Its claims take nothing.
3. Ledger.deduct removes the granted time, so later rules cannot claim it again.
4. The granted time is the cost of the finding, and the largest pieces become its evidence.

So the costs of a device's findings add up to at most `idle_ns + busy_ns - compute_ns`.

    base.py      CaptureFacts (what a rule reads) and FindingDraft (what a rule yields)
    ledger.py    claims, grants and the accounts of a device
    findings.py  from drafts to priced, sorted findings with evidence
    figures.py   select figures and format them for texts
"""
