"""Reports: text, JSON and pages from results. Reports measure nothing."""
