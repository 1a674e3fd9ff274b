"""Diffusion Policy: actions by denoising, under what the cameras see (arXiv 2303.04137)."""
