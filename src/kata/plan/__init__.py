"""The needs of a run before it starts: a traced training step, and memory computed from it."""
