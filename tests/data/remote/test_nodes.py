"""Two nodes that stream one dataset share its epoch: no sample twice, none left out."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np

from benchmarks.streaming.servers.files import FileServer, serving
from kata.data import Reader, open_dataset
from tests.data.dataset_maker import CAMERA, make

NODE = """
import json, sys, zlib
from kata.data import Batches, Order, Reader, anchor_rows, open_dataset
from kata.data.loader.batches import RankSlice
from kata.data.loader.far_data import open_fetch_pool, read_through
from kata.data.dataset.mixture import Mixture
from contextlib import ExitStack

url, camera, node = sys.argv[1], sys.argv[2], int(sys.argv[3])
with ExitStack() as live:
    data = Mixture.of(open_dataset("x/y", root=url))
    data = read_through(open_fetch_pool(live, data, 10**6), data)
    rows = anchor_rows(data)
    reader = live.enter_context(Reader(data, {}, threads=1, frame_memory=10**6))
    order = Order(len(rows), 3)
    batches = live.enter_context(Batches(reader, rows, order, 4, rank_slice=RankSlice(node, 2)))
    for step in range(len(rows) // 4):
        batch = batches.at(step)
        for place, position in enumerate(batch["position"].tolist()):
            pixels = zlib.crc32(batch[camera][place].tobytes())
            print(json.dumps([position, int(batch["index"][place]), pixels]))
"""


def test_two_nodes_read_each_sample_of_an_epoch_once(tmp_path: Path) -> None:
    server = FileServer(make(tmp_path / "set", lengths=(13, 11, 16)))
    with serving(server):
        nodes: list[subprocess.Popen[str]] = []
        for node in range(2):
            # A cache of its own, as on another machine.
            environ = os.environ | {"KATA_CACHE": str(tmp_path / f"cache{node}")}
            command = [sys.executable, "-c", NODE, server.url, CAMERA, str(node)]
            nodes.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
        texts = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "both nodes start and end"
    read = [[tuple(json.loads(line)) for line in text.splitlines()] for text in texts]
    samples = [{index for _, index, _ in one} for one in read]
    assert [len(one) for one in samples] == [20, 20]
    assert not samples[0] & samples[1]
    assert samples[0] | samples[1] == set(range(40))
    assert sorted(position for one in read for position, _, _ in one) == list(range(40))
    data = open_dataset("x/y", root=tmp_path / "set")
    with Reader(data, {}) as reader:
        near = reader.read(np.arange(40))[CAMERA]
    for _, index, pixels in (*read[0], *read[1]):
        assert pixels == zlib.crc32(near[index].tobytes())
