"""The training loop and what surrounds it: optimizer, schedule, interrupts, recovery."""
