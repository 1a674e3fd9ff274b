"""Multi-Task DiT: actions by diffusion or flow matching, under cameras, state and a sentence
(arXiv 2507.05331).
"""
