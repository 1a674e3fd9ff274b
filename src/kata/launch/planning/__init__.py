"""`kata plan`: what a run will need, before it runs."""
