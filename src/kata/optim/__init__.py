"""Optimizers, learning-rate schedules and the EMA of the weights. Configs are torch-free."""
