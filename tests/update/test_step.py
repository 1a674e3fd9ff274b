"""The loss that is trained on, against its definition computed by hand."""

import numpy as np
import pytest
import torch

from kata.data import Order, Reader
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.policies.base import Loss, Term
from kata.processors import frames_to_float
from kata.train import train
from kata.train.input.prepare import prepare
from kata.update.state import build_state
from kata.update.step import weighted


def test_each_sum_is_divided_by_its_own_count_and_scaled():
    loss = Loss({"a": Term(torch.tensor(6.0)), "b": Term(torch.tensor(10.0), 0.5)}, {})
    total, terms = weighted(loss, {"a": 3.0, "b": 4.0})
    assert (total.item(), terms["a"].item(), terms["b"].item()) == (2 + 1.25, 2.0, 2.5)


def test_the_first_loss_is_the_mean_error_over_real_actions(
    tiny_run, narrow_backbone, plain_charts
):
    run = tiny_run("--steps=1", "--policy.use_vae=false", "--policy.dropout=0", "--batch_size=40",
                   "--save_checkpoint=false")  # fmt: skip
    logged = train(run).last["loss"]
    prepared = prepare(run)
    rows = prepared.data.rows[Order(len(prepared.data.rows), run.seed).at(np.arange(40))]
    with Reader(
        prepared.data.train, prepared.reading.windows, keys=prepared.reading.keys
    ) as reader:
        raw = reader.read(rows)
    tensors = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in raw.items()}
    batch = prepared.normalization.before(frames_to_float(tensors, prepared.reading.cameras))
    policy = build_state(prepared.run, Engine(ProcessGroup(), prepared.device)).policy
    real = ~batch["action_is_pad"]
    assert 0 < real.sum() < real.numel(), "some windows must reach over an episode's end"
    error = (policy.predict_chunk(batch) - batch["action"]).abs()[real].mean()
    assert logged == pytest.approx(error.item(), rel=1e-5)
