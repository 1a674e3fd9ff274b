"""Network parts that two or more policies use."""
