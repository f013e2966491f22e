"""How fast kernels compute and communicate, where the capture tells how much they do."""
