"""`kata bench stream`: reading a dataset from a store, or a disk, without a model."""
