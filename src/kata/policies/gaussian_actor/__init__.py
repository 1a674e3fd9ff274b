"""A Gaussian policy that is learned by acting: SAC (arXiv 1812.05905) and HIL-SERL (2410.21845).

`kata.rl` trains it. LeRobot called it `sac` up to 0.5.
"""
