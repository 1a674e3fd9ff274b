"""Training: assemble, then a loop; every part keeps its state outside.

prepare -> state -> feed -> loop(update) -> validate, checkpoint, report
"""

from kata.train.assemble import Trained, train

__all__ = ["Trained", "train"]
