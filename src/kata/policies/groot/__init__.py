"""GR00T N1.7: a diffusion transformer reads features of Qwen3-VL (arXiv 2503.14734)."""
