"""`kata bench scale`: what more ranks bring, what they cost, and what they would take where
there are more of them.
"""
