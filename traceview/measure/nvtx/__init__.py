"""NVTX ranges: nesting on the host and projection on the GPU."""
