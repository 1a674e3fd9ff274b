"""Measures what this machine reads: kata, the decode floor below it, and LeRobot on the same
files.
"""
