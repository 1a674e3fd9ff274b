"""The model during training: state, device, engine, compilation, activation checkpointing."""
