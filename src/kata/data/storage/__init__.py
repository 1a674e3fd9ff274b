"""Bytes in memory and on disk: batch buffers, files of arrays, stamps of files."""
