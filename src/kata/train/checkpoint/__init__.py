"""Checkpoints: saving, loading, retention, upload, and the lock of a run folder."""
