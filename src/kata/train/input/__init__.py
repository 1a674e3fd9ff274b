"""Input of a run: datasets, checks, normalization, and the feed of batches."""
