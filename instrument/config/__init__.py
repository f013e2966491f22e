"""The configuration of a run: settings, their checks, YAML and flags."""
