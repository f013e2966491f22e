"""The grammar of `--fail-if`, with one vocabulary for each kind of result."""
