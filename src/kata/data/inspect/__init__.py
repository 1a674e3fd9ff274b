"""Summaries and HTML views of datasets."""
