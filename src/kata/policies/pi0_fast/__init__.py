"""π0-FAST: PaliGemma writes a chunk of actions as tokens, one by one (arXiv 2501.09747)."""
