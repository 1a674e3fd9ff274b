"""Parquet files: positions of pages, and encoded images stored in columns."""
