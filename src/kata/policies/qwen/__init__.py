"""Policies built on Qwen2.5-VL share this: its config, its sizes and its pretrained weights."""
