"""A corrected copy of a dataset: what has one mechanical answer is solved, the rest is named.

text -> declarations -> column layout -> episodes -> tasks -> index columns -> videos -> counts
-> statistics

Each step reads the copy as the steps before it have left it, and each has its own module.
"""
