"""Actors and a learner in processes and on machines apart, over HTTP.

    Spool       episodes of an actor on its disk, until the learner has them on its own
    EpisodeCourier     sends them and fetches weights, in the background; the actor always asks
    Serving     the learner's HTTP server
    Desk        between the server's thread and the learner's: episodes in, weights out
    NetworkLearner, NetworkActor

An episode counts once: by its actor's name and its number there, when it is in the journal.
"""
