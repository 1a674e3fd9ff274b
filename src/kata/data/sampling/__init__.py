"""Sampling: the anchor at each position of the endless sample stream."""
