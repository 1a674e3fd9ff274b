"""The reader for any PyTorch loop: LeRobot's batches as torch tensors, from a disk or a store."""

from kata.loader.loader import Loader

__all__ = ["Loader"]
