"""One file a quantity: pure functions from the typed frames of a Trace to a typed result."""
