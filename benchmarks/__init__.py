"""Measurements of this repository, which are no part of the installed package."""
