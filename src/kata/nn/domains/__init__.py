"""Layers whose weights depend on the sample's domain, such as its robot."""
