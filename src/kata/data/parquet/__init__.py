"""Parquet files: positions of pages, and images stored in columns."""
