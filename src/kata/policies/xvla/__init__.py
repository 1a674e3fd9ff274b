"""X-VLA: Florence-2 and a transformer with soft prompts per robot (arXiv 2510.10274)."""
