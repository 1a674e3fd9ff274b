"""Datasets in a store on the network: reading of ranges, retries, and a local copy of metadata."""
