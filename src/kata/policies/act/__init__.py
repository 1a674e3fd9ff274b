"""ACT, the Action Chunking Transformer (arXiv 2304.13705): regresses a whole chunk of actions at
once.
"""
