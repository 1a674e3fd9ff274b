"""EO-1: flow matching inside the sequence of a vision-language model (arXiv 2508.21112)."""
