"""Environments that policies are evaluated in."""
