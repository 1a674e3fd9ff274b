"""Datasets in memory: columns, windows, and mixtures."""
