"""`kata doctor`: what this machine is, and what about it would spoil a run. Needs neither torch
nor a GPU.
"""
