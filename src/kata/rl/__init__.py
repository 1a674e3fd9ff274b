"""Reinforcement learning: a policy that learns by acting, with demonstrations and human takeovers.

    EpisodeActor    plays episodes in an RlEnv; a Scripted expert or a human may take over
    Journal         keeps every episode on the disk
    Learner         takes episodes into its rings, draws batches from them, and updates Sac

An episode is the unit that is stored and learned from. What a run learns follows from its journal.
"""
