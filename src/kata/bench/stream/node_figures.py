"""The figures of a node: sums over its ranks, and percentiles over all of their batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kata.bench.stream.rank_run import RankRun

PERCENTILES = (50, 95, 99)


def nodes_of(ranks: Sequence[RankRun]) -> list[list[RankRun]]:
    """Divide ranks in ascending order into nodes: each begins with the local rank 0."""
    nodes: list[list[RankRun]] = []
    for rank in ranks:
        if rank.local_rank == 0 or not nodes:
            nodes.append([])
        nodes[-1].append(rank)
    return nodes


def node_figures(ranks: Sequence[RankRun]) -> dict[str, Any]:
    """Return the figures of the ranks of one node.

    Rates are those of all samples over the time of the slowest rank.
    """
    samples = sum(len(rank.batch_s) * rank.batch_size for rank in ranks)
    frames = samples * ranks[0].frames_per_sample
    wallclock_s = max(sum(rank.batch_s) for rank in ranks)
    work = Counter[str]()
    for rank in ranks:
        work.update(rank.work)
    is_streamed = ranks[0].is_streamed
    brought = work["bytes_fetched"] if is_streamed else work["bytes_read"]
    return {
        "ranks": len(ranks),
        "samples": samples,
        "frames_per_s_node": frames / wallclock_s,
        "samples_per_s": samples / wallclock_s,
        "open_s": max(rank.open_s for rank in ranks),
        "first_batch_latency_s": max(rank.first_batch_s for rank in ranks),
        **_latencies(ranks),
        "wallclock_s": wallclock_s,
        **_decoded_frames(ranks, work),
        "bytes_per_sample": brought / samples,
        "read_amplification": brought / samples / ranks[0].stored_bytes_per_sample,
        "fetched_bytes": sum(rank.fetched_bytes for rank in ranks),
        "requests_per_sample": work["requests"] / samples,
        "request_ms": 1e3 * work["request_s"] / max(1, work["requests"]),
        "store_wait_s": max(rank.work["store_wait_s"] for rank in ranks),
        "cpu_s_per_sample": sum(rank.cpu_s for rank in ranks) / samples,
        "other_cores": _other_cores(ranks),
        "decoded_per_asked": work["frames_decoded"] / max(1, work["frames_asked"]),
        "episodes_per_batch": sum(rank.episodes_per_batch for rank in ranks) / len(ranks),
        **ranks[0].mixing,
        "peak_bytes": sum(rank.peak_bytes for rank in ranks),
        "budget_bytes": sum(rank.budget_bytes for rank in ranks),
    }


def _other_cores(ranks: Sequence[RankRun]) -> float:
    """Return the cores that other processes of the node used; a server on it is one of them."""
    slowest = max(ranks, key=lambda rank: sum(rank.batch_s))
    others_s = slowest.busy_s - sum(rank.cpu_s for rank in ranks)
    return max(0.0, others_s / sum(slowest.batch_s))


def _latencies(ranks: Sequence[RankRun]) -> dict[str, float]:
    """Return percentiles of the milliseconds per sample of a batch, over all batches."""
    sample_ms: list[float] = []
    for rank in ranks:
        for batch_s in rank.batch_s:
            sample_ms.append(1e3 * batch_s / rank.batch_size)
    found = np.percentile(sample_ms, PERCENTILES).tolist()
    names = [f"p{share}_sample_latency_ms" for share in PERCENTILES]
    return dict(zip(names, found, strict=True))


def _decoded_frames(ranks: Sequence[RankRun], work: Mapping[str, float]) -> dict[str, float]:
    """Return how often a frame was there decoded already, under the names of a decoder cache."""
    hits = work["frames_held"]
    return {
        "decoder_cache_hits": hits,
        "decoder_cache_misses": work["frames_asked"] - hits,
        "decoder_cache_evictions": sum(rank.evicted for rank in ranks),
        "decoder_cache_hit_rate": hits / max(1, work["frames_asked"]),
        "decoder_cache_bytes": sum(rank.held_bytes for rank in ranks),
    }
