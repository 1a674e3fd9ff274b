"""Soft actor-critic: options, critics, and the update."""
