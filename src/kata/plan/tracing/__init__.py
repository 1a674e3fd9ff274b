"""Tracing of a training step on fake tensors: no GPU, no weights, no network."""
