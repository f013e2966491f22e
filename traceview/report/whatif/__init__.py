"""Reports of a what-if: terminal and JSON."""
