"""TD-MPC in its offline form FOWM: plans in a world model learnt from recordings (arXiv
2203.04955, 2310.16029).
"""
