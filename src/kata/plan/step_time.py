"""Time of a training step by parts, computed from its trace. Torch-free.

Every operation takes the time of its arithmetic or its traffic of memory, by the rates of a
device. The host launches kernels meanwhile, other ranks' gradients arrive, and data are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kata.plan.catalogue import LINKS, Link
from kata.plan.device_rates import DeviceRates
from kata.plan.memory import ONE_RANK, RankLayout
from kata.plan.step_trace import StepTrace, TracedOperation

BUCKET_BYTES = 25 * 2**20
"""DDP's default, `ddp.bucket_mb`."""

HALF_BANDWIDTH_BYTES = 23 * 2**20
"""Size of an all-reduce that reaches half of the bus bandwidth: 22 to 24 MiB fit nccl-tests' sweeps
on A100 and H200 (github.com/stas00/ml-engineering, network).
"""

JITTER_PER_DOUBLING = 0.02
"""Share of a step that each doubling of the ranks adds: each step waits for its slowest host.

Tables of data-parallel training show 1 % on 8 H100 and 10 % on 8 A100 of an older stack
(github.com/lambdal/deeplearning-benchmark).
"""

OVERLAPPED_SHARE = 0.9
"""Share of the backward pass that hides communication: the first bucket must be full before."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step on one rank.

    Attributes:
        compute_s: work of the device.
        launch_s: work of the host to launch it.
        communication_s: exchange with other ranks that the backward pass does not hide.
        data_s: reading and decoding of the rank's samples.
        kinds: seconds of `compute_s` by class of operation.
    """

    compute_s: float
    launch_s: float
    communication_s: float
    data_s: float
    kinds: dict[str, float] = field(hash=False)

    @property
    def update_s(self) -> float:
        """Return the time of a step whose data are there."""
        return max(self.compute_s, self.launch_s) + self.communication_s

    @property
    def step_s(self) -> float:
        """Return the time of a step; reading runs beside it, and the slower one binds."""
        return max(self.update_s, self.data_s)

    @property
    def binds(self) -> str:
        """Return the part that binds: 'compute', 'launch', 'communication' or 'data'."""
        if self.data_s > self.update_s:
            return "data"
        if self.communication_s > max(self.compute_s, self.launch_s):
            return "communication"
        return "launch" if self.launch_s > self.compute_s else "compute"


def operation_s(operation: TracedOperation, batch: int, rates: DeviceRates) -> float:
    """Return the seconds that one operation takes on the device."""
    moved = operation.read_bytes.at(batch) + operation.written_bytes.at(batch)
    traffic_s = moved / rates.bytes_s
    beside_s = operation.launches * rates.kernel_s
    flops = operation.flops.at(batch)
    if not flops:
        return traffic_s + beside_s
    arithmetic_s = flops / rates.flop_s(operation.kind, operation.dtype)
    if operation.kind == "convolution":
        return arithmetic_s + rates.convolution_passes * traffic_s + beside_s
    return arithmetic_s + traffic_s + beside_s


def step_time(
    trace: StepTrace,
    batch: int,
    rates: DeviceRates,
    *,
    accumulation: int = 1,
    layout: RankLayout = ONE_RANK,
    link: Link = LINKS["none"],
    data_s: float = 0.0,
    bucket_bytes: int = BUCKET_BYTES,
) -> StepTime:
    """Compute the time of one optimizer step.

    Args:
        trace: of one step with one micro-batch.
        batch: samples of a micro-batch.
        rates: of the device, for the trace's precision.
        accumulation: micro-batches of a step.
        layout: the ranks.
        link: the slowest connection among them.
        data_s: time in which the rank's samples of a step are read.
        bucket_bytes: size of DDP's buckets.
    """
    kinds: dict[str, float] = {}
    phases: dict[str, float] = {}
    for operation in trace.operations:
        times = 1 if operation.phase == "optimizer" else accumulation
        taken_s = operation_s(operation, batch, rates) * operation.runs * times
        kinds[operation.kind] = kinds.get(operation.kind, 0.0) + taken_s
        phases[operation.phase] = phases.get(operation.phase, 0.0) + taken_s
    once = trace.launches("optimizer")
    launches = (trace.launches() - once) * accumulation + once
    compute_s = sum(kinds.values())
    hidden_s = OVERLAPPED_SHARE * phases.get("backward", 0.0) / accumulation
    exposed_s = _communication_s(trace, layout, link, bucket_bytes, hidden_s)
    doublings = (layout.ranks - 1).bit_length()
    return StepTime(
        compute_s=compute_s,
        launch_s=launches * rates.launch_s,
        communication_s=exposed_s + JITTER_PER_DOUBLING * doublings * compute_s,
        data_s=data_s,
        kinds=kinds,
    )


def all_reduce_s(num_bytes: float, ranks: int, link: Link, bucket_bytes: int) -> float:
    """Return the time to sum gradients over ranks, bucket by bucket.

    Bus bandwidth is that of nccl-tests: t = 2 (n - 1) / n * bytes / bandwidth.
    """
    if ranks == 1:
        return 0.0
    buckets = max(1, -(-int(num_bytes) // bucket_bytes))
    size = num_bytes / buckets
    bandwidth = link.bus_bytes_s * size / (size + HALF_BANDWIDTH_BYTES)
    return buckets * (link.latency_s + 2 * (ranks - 1) / ranks * size / bandwidth)


def _communication_s(
    trace: StepTrace, layout: RankLayout, link: Link, bucket_bytes: int, hidden_s: float
) -> float:
    """Return the exchange that the backward pass does not hide, the last bucket at least.

    Shards gather their weights in both passes and scatter gradients, half an all-reduce each.
    """
    if layout.ranks == 1:
        return 0.0
    gradients = 4 * trace.trainable
    whole_s = all_reduce_s(gradients, layout.ranks, link, bucket_bytes)
    if layout.shards > 1 or layout.zero_stage == 3:
        whole_s *= 1.5
    last_s = all_reduce_s(min(gradients, bucket_bytes), layout.ranks, link, bucket_bytes)
    return max(whole_s - hidden_s, last_s)
