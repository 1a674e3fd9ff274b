"""Servers on the loopback address: files over HTTP, a part of the Hub, S3, and a faulty proxy."""
