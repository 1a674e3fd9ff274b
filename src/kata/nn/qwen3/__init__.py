"""Qwen3-VL (arXiv 2511.21631): an image encoder and a language model; transformers' names."""
