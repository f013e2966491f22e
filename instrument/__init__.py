"""What a training program wears so that its capture can be read: NVTX ranges around what it does.

Needs no torch and no `traceview`; does nothing where `nvtx` is not installed.
"""

from instrument.ranges import annotate, mark, phase

__all__ = ["annotate", "mark", "phase"]
