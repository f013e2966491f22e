"""Idle gaps of devices and streams, and the cause of each nanosecond."""
