"""Reinforcement learning: a policy that learns by acting, with demonstrations and human takeovers.

    World, Takeovers -> Episode -> Journal -> Ring -> Batches -> Sac.update -> weights -> Actor

An episode is the unit that is stored and learned from. What a run learns follows from its journal.
"""
