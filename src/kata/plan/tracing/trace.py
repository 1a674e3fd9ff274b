"""One training step of a run on fake tensors, and the lines that its counts follow."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from kata.config import encode
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.errors import PolicyError
from kata.optim.config import AdamW8bitConfig, AdamWConfig
from kata.optim.eight_bit import BLOCK, SMALLEST
from kata.plan.step_trace import Linear, StepTrace, TracedStorage
from kata.plan.tracing.blank_batch import blank_batch
from kata.plan.tracing.cuda_rules import cuda_rules
from kata.plan.tracing.fake_tensors import treated_as_real
from kata.plan.tracing.lines import fit_lines
from kata.plan.tracing.recorder import Recording, StepRecorder
from kata.policies.base import Policy
from kata.run import Run
from kata.run.dataset import FEATURE_CACHES
from kata.update.state import TrainState, build_state
from kata.update.step import autocast, update

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch.amp.grad_scaler import GradScaler
    from torch.optim import Optimizer

DEVICES = ("cuda", "cpu")
SIZES = (2, 3, 5)
"""Micro-batches that are traced. Lines go through the first two, and the third checks them.

One sample is left out, since torch skips copies where the size of an axis is 1.
"""

_UNTRACEABLE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    UnsupportedFakeTensorException,
)


def trace_step(run: Run, *, device: str = "cuda") -> StepTrace:
    """Trace a step of the run's policy, optimizer, precision and EMA, without its weights.

    It is a step after the first one, when the optimizer has its state; of a policy whose loss
    changes, it is one with the later loss. Nothing is computed, so no GPU, weights or network are
    needed. Compilation (`--compile`) and augmentation are not traced.

    Args:
        run: the options, with the policy's input and output features filled in.
        device: 'cuda' or 'cpu': the device whose rules apply.

    Returns:
        The trace, for any number of samples.

    Raises:
        PolicyError: the step asks for a value that only data have, or a count of it does not grow
            linearly with the samples. The message names the operation.
    """
    if device not in DEVICES:
        raise PolicyError(
            f"device={device}: cannot be traced",
            rule=f"rules are known for {' and '.join(DEVICES)}",
            remedy="--policy.device=cuda",
        )
    plain = _with_known_optimizer(run)
    with _tracing(run, device):
        engine = TracedEngine()
        state = warm_state(plain, engine)
        recordings = [_recorded(plain, state, engine, size, device) for size in SIZES]
        trace = StepTrace(
            policy=run.policy.type,
            device=device,
            precision=run.precision,
            recomputes=run.gradient_checkpointing,
            torch=torch.__version__,
            trainable=_count(state.policy, trained=True),
            frozen=_count(state.policy, trained=False),
            unit_bytes=_unit_bytes(state),
            feature_bytes=_feature_bytes(run, state.policy),
            **fit_lines(run.policy.type, SIZES, recordings),
        )
    return trace if plain is run else _with_state_in_8_bits(trace)


def _with_known_optimizer(run: Run) -> Run:
    """Return the run with AdamW for AdamW in 8 bits, whose kernels are not torch's."""
    if not isinstance(run.optimizer, AdamW8bitConfig):
        return run
    options = {n: v for n, v in encode(run.optimizer).items() if n != "type"}
    return dataclasses.replace(run, optimizer=AdamWConfig(**options))


def _with_state_in_8_bits(trace: StepTrace) -> StepTrace:
    """Return the trace with an optimizer state of a byte per number and a scale per block."""
    share = (1 + 4 / BLOCK) / 4
    storages: list[TracedStorage] = []
    for each in trace.storages:
        size = each.size_bytes
        if each.part == "optimizer_state" and size.fixed >= 4 * SMALLEST:
            each = each._replace(size_bytes=Linear(size.fixed * share, size.per_sample))
        storages.append(each)
    return dataclasses.replace(trace, storages=tuple(storages))


class TracedEngine(Engine):
    """An engine of one rank that tells the recorder where each phase begins."""

    def __init__(self) -> None:
        super().__init__(ProcessGroup(), torch.device("cpu"))
        self.may_ask = False  # fake tensors have no values
        self.recorder: StepRecorder | None = None

    def place(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        """Leave fake tensors where they are."""

    def micro(self, *, last: bool) -> AbstractContextManager[object]:
        """Begin the forward pass of a micro-batch."""
        if self.recorder is not None:
            self.recorder.enter_phase("forward")
        return super().micro(last=last)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients; what is alive before is what the forward pass has left."""
        if self.recorder is not None:
            self.recorder.end_forward()
            self.recorder.enter_phase("backward")
        super().backward(loss)

    def step(
        self, optimizer: Optimizer, loss: Tensor, max_norm: float, scaler: GradScaler | None = None
    ) -> tuple[Tensor, Tensor]:
        """Clip, step and drop gradients, which are labelled before they go."""
        if self.recorder is not None:
            self.recorder.label("gradients", _gradients(optimizer))
            self.recorder.enter_phase("optimizer")
        return super().step(optimizer, loss, max_norm, scaler)


@contextmanager
def _tracing(run: Run, device: str) -> Generator[None]:
    """Fake tensors and the device's rules inside the block; errors name the operation."""
    with ExitStack() as held:
        held.enter_context(torch.random.fork_rng(devices=[]))
        held.enter_context(warnings.catch_warnings())
        # Copies of modules ask for it, and do without.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        held.enter_context(treated_as_real())
        if device == "cuda":
            held.enter_context(cuda_rules())
        held.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        try:
            yield
        except _UNTRACEABLE as error:
            operation = getattr(error, "func", error)
            raise PolicyError(
                f"policy.type={run.policy.type}: its training step cannot be traced: {operation} "
                "needs values that only data have",
                rule="the shapes in a step follow from the shapes of its batch",
                remedy="compute this with masks instead of a selection, or give the memory by hand",
            ) from error


def warm_state(run: Run, engine: Engine) -> TrainState:
    """Return the state after a first step, with new weights and the optimizer's state.

    A policy whose loss changes takes the last step with the first loss, and one with the other.
    """
    state = build_state(run, engine, weights_follow=True, with_base=False)
    state.optimizer = engine.begin(state.policy, state.optimizer)
    changes_after = run.policy.loss_changes_after()
    state.step = max(0, changes_after - 1)
    for _ in range(2 if changes_after else 1):
        update(state, blank_batch(run, SIZES[0]), run, engine)
    return state


def _recorded(
    run: Run, state: TrainState, engine: TracedEngine, size: int, device: str
) -> Recording:
    """Return what one step with `size` samples does."""
    # A cycle of references would end at another operation each time.
    gc.collect()
    gc.disable()
    try:
        with StepRecorder(_resident(state), device) as recorder:
            recorder.enter_phase("input")
            batch = blank_batch(run, size, recorder)
            for storage in recorder.alive():
                storage.part = storage.part or "inputs"
            engine.recorder = recorder
            update(state, batch, run, engine)
            engine.recorder = None
            return recorder.recording
    finally:
        gc.enable()


def _resident(state: TrainState) -> dict[str, list[Tensor]]:
    """Return the tensors of the state by part."""
    trained: list[Tensor] = [p for p in state.policy.parameters() if p.requires_grad]
    frozen: list[Tensor] = [p for p in state.policy.parameters() if not p.requires_grad]
    states: list[Tensor] = []
    for values in state.optimizer.state.values():
        states += [value for value in values.values() if isinstance(value, Tensor)]
    average: list[Tensor] = []
    if state.ema is not None:
        average = [*state.ema.parameters(), *state.ema.buffers()]
    return {
        "weights": trained,
        "frozen_weights": [*frozen, *state.policy.buffers()],
        "ema": average,
        "optimizer_state": states,
    }


def _feature_bytes(run: Run, policy: Policy) -> int:
    """Return the bytes of the features of a sample that `dataset.cache` keeps; 0 if it keeps none.

    Numbers in a record are aligned, which adds less than eight bytes.
    """
    kind = run.dataset.cache
    if kind not in FEATURE_CACHES:
        return 0
    batch = blank_batch(run, SIZES[0]).micros[0]
    with autocast(run.precision, torch.device("cpu")), torch.no_grad():
        features = policy.frozen_features(batch, kind)
    return sum(x.numel() * x.element_size() for x in features.values()) // SIZES[0]


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    found: list[Tensor] = []
    for group in optimizer.param_groups:
        found += [p.grad for p in group["params"] if p.grad is not None]
    return found


def _count(module: nn.Module, *, trained: bool) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad is trained)


def _unit_bytes(state: TrainState) -> tuple[int, ...]:
    """Return the weights of each unit that is sharded by itself, then those of no unit."""
    seen: set[int] = set()

    def fresh(module: nn.Module) -> int:
        total = 0
        for parameter in module.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                total += parameter.numel() * parameter.element_size()
        return total

    units = [fresh(unit) for unit in state.policy.shard_units()]
    return (*units, fresh(state.policy))
