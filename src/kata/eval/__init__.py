"""Trying policies in simulation: the built-in task, its demonstrations, and rollouts."""
