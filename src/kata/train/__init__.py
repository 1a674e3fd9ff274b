"""Training: assemble, then a loop; every part keeps its state outside.

    prepare -> state -> feed -> loop(update) -> validate, checkpoint, report

The names are imported when they are first asked for: a step needs neither a video reader nor a
progress bar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kata.train.trainer import Trained, train

__all__ = ["Trained", "train"]


def __getattr__(name: str) -> object:
    """Import `train` or `Trained`, with all that a whole run needs."""
    if name in __all__:
        from kata.train import trainer

        return {"train": trainer.train, "Trained": trainer.Trained}[name]
    raise AttributeError(f"module 'kata.train' has no attribute '{name}'")
