"""Sampling: which anchor stands at a position of the endless sample stream."""
