"""Targets of a launch: this machine's ranks, a SLURM cluster, Hugging Face Jobs. Torch-free.

The launcher starts processes and reads nothing that they compute. A rank finds its place in the
environment, as under torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
MASTER_ADDR, MASTER_PORT).
"""
