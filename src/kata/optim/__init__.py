"""Optimisers, learning-rate schedules and the weight average. Configs are torch-free."""
