"""ACT, the Action Chunking Transformer (arXiv 2304.13705), which predicts a whole chunk of
actions.
"""
