"""NVTX ranges: their nesting, and the GPU work that belongs to them."""
