"""Typed frames and results: what flows between reading, measuring, pricing and reporting."""
