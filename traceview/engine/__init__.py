"""The steps of an analysis after reading: measure, model, find, price (docs/design.md)."""
