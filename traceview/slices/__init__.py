"""Analysis of a capture in time slices."""
