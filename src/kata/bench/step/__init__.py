"""`kata bench step`: kernels, saved bytes and floating-point operations of a training step."""
