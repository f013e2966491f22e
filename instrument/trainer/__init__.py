"""The trainer: learner, loop, interrupts, recovery from errors, and the run that connects them."""
