"""Iterations: which ranges they are, and what each consists of."""
