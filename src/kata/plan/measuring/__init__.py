"""Measuring on the device at hand: its rates, and steps of a policy."""
