"""How Accelerate's FSDP2 cuts a policy into pieces. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from kata.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FsdpConfig:
    """Sharding by Accelerate's FSDP2: which modules are gathered one by one (`wrap`), and whether they are given back
    after the forward pass (`reshard_after_forward`).

    wrap: 'units' are the policy's own; 'none' gathers all at once; 'size' those of more than `min_num_params`
    parameters; else class names, separated by commas.
    """

    wrap: str = "units"
    min_num_params: int = 0
    reshard_after_forward: bool = True

    def __post_init__(self) -> None:
        if (self.wrap == "size") != (self.min_num_params > 0):
            raise ConfigError(
                f"fsdp.wrap={self.wrap} with fsdp.min_num_params={self.min_num_params}",
                rule="modules are chosen by their size with both",
                remedy="--fsdp.wrap=size --fsdp.min_num_params=1000000, or leave out both",
            )
