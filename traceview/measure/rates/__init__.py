"""Rates of computation and communication, where the capture states the amount of work."""
