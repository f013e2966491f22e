"""Inputs of which each has one property that users reported, and the figures that they must have.

Two scripts beside the captures make them from samples: `../shared/cases/torch_cases.py` and `nsys_cases.py`. Their
docstrings name the public threads.
"""
