"""Evaluation during training: validation, environments, and samples for the report."""
