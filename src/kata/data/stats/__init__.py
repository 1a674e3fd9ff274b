"""Statistics of datasets and mixtures."""
