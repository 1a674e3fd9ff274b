"""Fine-tuning from a base: adapters, weights by reference to the base, and frozen weights in few
bits.
"""
