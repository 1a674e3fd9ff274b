"""Florence-2's two halves that encode images and text (arXiv 2311.06242)."""
