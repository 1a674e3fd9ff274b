"""One optimizer update: its state, its batch, losses, gradients, the optimizer's step, the EMA."""
