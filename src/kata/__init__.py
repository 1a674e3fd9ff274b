"""kata trains robot policies: LeRobot datasets in, LeRobot checkpoints out."""

__version__ = "0.1.0"
__all__ = ["__version__"]
