"""The place in the program that launches each kernel: range, module, op, line and direction."""
