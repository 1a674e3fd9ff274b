"""The loss that is trained on, against its definition computed by hand."""

import numpy as np
import pytest
import torch

from kata.data import Order, Reader
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.policies.base import Loss, Term
from kata.processors import frames_to_float
from kata.spec import DATASET_INDEX
from kata.train import train
from kata.train.input.prepare import prepare
from kata.update.state import build_state
from kata.update.step import denominators, weighted
from kata.update.step_batch import Share, StepBatch


def test_each_sum_is_divided_by_its_own_count_and_scaled():
    loss = Loss({"a": Term(torch.tensor(6.0)), "b": Term(torch.tensor(10.0), 0.5)}, {})
    total, terms = weighted(loss, {"a": 3.0, "b": 4.0})
    assert (total.item(), terms["a"].item(), terms["b"].item()) == (2 + 1.25, 2.0, 2.5)


def test_counts_that_follow_from_values_are_summed_over_micro_batches_and_datasets():
    class Counting:
        def loss_counts(self, batch):
            return {"a": batch["words"]}

    micros = []
    for words, datasets in (([3, 0], [0, 2]), ([2, 5], [2, 0])):
        micros.append({"words": torch.tensor(words), DATASET_INDEX: torch.tensor(datasets)})
    shares = [Share(number, name, {"b": 1.0}) for number, name in ((0, "x"), (2, "y"))]
    given = StepBatch(micros, [{}, {}], {"b": 4.0}, np.arange(4), 0.0, 0.0, shares=shares)
    engine = Engine(ProcessGroup(), torch.device("cpu"))
    weights, parts = denominators(Counting(), given, engine)
    assert {name: float(count) for name, count in weights.items()} == {"a": 10.0, "b": 4.0}
    assert [float(part.weights["a"]) for part in parts] == [8.0, 2.0]
    assert parts[0].weights["b"] == 1.0
    for micro in micros:
        micro["words"].zero_()
    weights, _ = denominators(Counting(), given, engine)
    assert weights["a"] == 1  # nothing is divided by zero


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
