"""The same samples in the same steps, and the same parameters, however a batch is split and by
whomever it is read.
"""

import numpy as np
import pytest
import torch

from kata.train import loop, train
from tests.train.test_train import close, equal, weights

STEPS = "--steps=20"
PLAIN = ("--policy.dropout=0", "--optimizer.type=sgd", "--optimizer.lr=0.01")
SPLITS = {
    "1 x 4": (),
    "2 x 2": ("--batch_size=2", "--accelerator.gradient_accumulation.steps=2"),
    "4 x 1": ("--batch_size=1", "--accelerator.gradient_accumulation.steps=4"),
    "4 threads": ("--num_workers=4", "--prefetch_factor=1"),
    "far ahead": ("--num_workers=2", "--prefetch_factor=16"),
}


@pytest.fixture
def watched(monkeypatch):
    """Train, and note what each step is given: positions, states and actions."""

    def run(asked):
        seen = []
        real = loop.update

        def update(state, batch, run, engine):
            whole = {
                k: torch.cat([m[k] for m in batch.micros])
                for k in ("observation.state", "action", "index")
            }
            seen.append((batch.positions, whole))
            return real(state, batch, run, engine)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "update", update)
            return train(asked), seen

    return run


@pytest.mark.parametrize("name", list(SPLITS)[1:])
def test_a_step_sees_the_same_samples_and_makes_the_same_update(
    vector_run, watched, tmp_path, name
):
    straight, expected = watched(vector_run(STEPS, *PLAIN))
    other, found = watched(
        vector_run(STEPS, *PLAIN, *SPLITS[name], f"--output_dir={tmp_path}/other")
    )
    assert len(found) == 20
    for step, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        assert ours[0].tolist() == list(range(4 * step, 4 * step + 4))
        assert np.array_equal(theirs[0], ours[0])
        assert equal(theirs[1], ours[1])
    close(weights(straight), weights(other), atol=1e-6)
    if "x" not in name:
        assert equal(weights(straight), weights(other))


def test_every_frame_is_seen_once_an_epoch(vector_run, watched):
    _, seen = watched(vector_run("--steps=12"))
    index = torch.cat([whole["index"] for _, whole in seen]).reshape(3, 16)
    assert all(sorted(epoch.tolist()) == list(range(16)) for epoch in index)
    assert index[0].tolist() != index[1].tolist()
