"""Readers and batches: samples by position."""
