"""Episodes: as arrays and files, in the journal on the disk, and in buffers in memory."""
