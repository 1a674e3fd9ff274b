"""`kata rl classify`: train a reward classifier, and say how good it is."""

from __future__ import annotations

from kata.rl.classifier.options import ClassifyRun


def classify(options: ClassifyRun) -> int:
    """Train a reward classifier; return the exit status 0."""
    from kata.rl.classifier.training import train_classifier

    found = train_classifier(options)
    print(
        f"{options.output_dir}: {found.right:.1%} of {found.frames} frames of {found.episodes} "
        f"episodes kept apart told right (a constant answer: {found.majority:.1%}); "
        f"{found.missed:.1%} of successes missed, {found.false:.1%} of failures taken for success"
    )
    print(
        f"use it: kata rl train --rl.reward=classifier --rl.classifier={options.output_dir} "
        f"--rl.threshold={options.threshold:g} ..."
    )
    return 0
