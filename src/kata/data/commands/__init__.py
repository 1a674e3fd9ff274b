"""The verbs of `kata data`. Their table is in kata.cli; a verb's module is imported when it runs."""
