"""Video files: packet positions, decoding, encoding, and conversion of colors."""
