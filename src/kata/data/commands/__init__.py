"""The verbs of `kata data`. Their table is in kata.cli; a module is imported when its verb runs."""
