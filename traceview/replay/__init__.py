"""Predict the gain of a change: build a graph of some iterations, change it and replay it (docs/whatif.md)."""
