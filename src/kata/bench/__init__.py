"""Measurements of this machine: reading beside the decode floor, and scaling with ranks."""
