"""What every test needs: nothing but a hypothesis profile that a slow machine cannot fail."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Timing is no property of the code: a loaded machine must not fail a test.
settings.register_profile("traceview", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("traceview")
