"""Reward classifiers: networks that see success in pictures. Options, model, training, use."""
