"""`--compile`: each block of a policy is compiled in place with torch.compile.

Names of weights stay, so checkpoints do not depend on it. Validation and acting run uncompiled:
their shapes differ, and would compile everything again.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

# There is no public name for what torch.compile raises, and none for these switches.
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException
from torch._functorch import config as autograd_config

from kata.errors import ConfigError
from kata.policies.base import Policy

_log = logging.getLogger(__name__)

HOW: dict[str, Any] = {"backend": "inductor", "options": {"fallback_random": True}}
"""Dropout is drawn as without the compiler, so that a run stays the run that it is."""


class CompiledBlock:
    """The call of a module: compiled in training, until the compiler fails; uncompiled otherwise.

    error: the compiler's message, or None. A block is compiled as a whole, forward and backward,
    before any part of it runs. A failure half-way would have drawn dropout twice.
    """

    def __init__(self, name: str, module: nn.Module, policy: Policy, said: set[str]) -> None:
        self.name = name
        self.error: str | None = None
        self._module = module
        self._policy = policy
        self._said = said
        self._compiled = torch.compile(_call_of(module), fullgraph=True, dynamic=False, **HOW)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output."""
        if self.error is not None or not self._policy.training:
            return _call_of(self._module)(*args, **kwargs)
        try:
            return self._compiled(*args, **kwargs)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self.error = _first_line(error)
        if (
            self.error not in self._said
        ):  # the same for each block where there is no compiler at all
            self._said.add(self.error)
            _log.warning("--compile: %s runs uncompiled: %s", self.name, self.error)
        return _call_of(self._module)(*args, **kwargs)


def compile_blocks(policy: Policy) -> list[CompiledBlock]:
    """Compile the modules that the policy names as its units, when each first runs.

    Raises: ConfigError where part of the policy is compiled already.
    """
    if any(module._compiled_call_impl is not None for module in policy.modules()):  # pyright: ignore[reportPrivateUsage]
        raise ConfigError(
            "compile=true beside policy.compile_model=true",
            rule="a module is compiled once",
            remedy="leave out one of the two",
        )
    names = {module: name for name, module in policy.named_modules()}
    units, said = policy.shard_units(), set[str]()
    blocks = [CompiledBlock(names[unit], unit, policy, said) for unit in units]
    # The compiler looks at each tensor that it sees.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
    # Blocks of one class are variants of one compiled function.
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, 4 * len(blocks))
    dynamo_config.optimize_ddp = (
        False  # it splits graphs at DDP's buckets, and a block is smaller than one
    )
    autograd_config.force_non_lazy_backward_lowering = (
        True  # else its errors come in the middle of a backward pass
    )
    for block, unit in zip(blocks, units, strict=True):
        unit._compiled_call_impl = block  # pyright: ignore[reportPrivateUsage]: where Module.compile puts it
    return blocks


def uncompiled(blocks: Sequence[CompiledBlock]) -> list[str]:
    """Return a remark for each compiler error, with the blocks that ran uncompiled."""
    failed: dict[str, list[str]] = {}
    for block in blocks:
        if block.error is not None:
            failed.setdefault(block.error, []).append(block.name)
    return [
        f"--compile: {len(names)} of {len(blocks)} blocks ran uncompiled ({', '.join(names[:3])}"
        f"{', ...' if len(names) > 3 else ''}): {error}"
        for error, names in failed.items()
    ]


def _call_of(module: nn.Module) -> Any:
    """A module's call with its hooks, past what is compiled."""
    return module._call_impl  # pyright: ignore[reportPrivateUsage]: Module.compile compiles the same


def _first_line(error: Exception) -> str:
    cause = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0]}" if text else type(cause).__name__
