"""Decoded frames: who needs which, when; decoding, buffering and caching."""
