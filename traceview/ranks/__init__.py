"""Analysis of many reports: workers measure each report and keep the small results, which merge into one Fleet.

analyze_reports.py    finds reports and sends them to workers: processes of this machine, or those of an executor
worker.py             runs in a worker: measure_report.py makes one ReportResult
merge.py              merges reports: iterations, match, clocks, waits, rank_figures

This module imports nothing, so that a worker can limit its threads before polars starts.
"""
