"""Bytes in memory and on disk: batch buffers, array files, file stamps."""
