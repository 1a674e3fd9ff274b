"""`kata bench stream` reads what it says, sums ranks per node, and keeps every figure."""

import csv
import json
from dataclasses import replace

import pytest

from benchmarks.streaming.servers.files import FileServer, serving
from benchmarks.streaming.servers.proxy import Faults, proxied
from kata.bench.stream.node_figures import node_figures, nodes_of
from kata.bench.stream.rank_run import RankRun
from kata.bench.stream.records import table_text
from kata.cli import BENCH, main
from kata.config.verb import read_options
from kata.errors import ConfigError
from tests.data import dataset_maker
from tests.dist import ranks

QUICK = ("--batch_size=4", "--num_batches=6", "--num_workers=2", "--prefetch_factor=1")
LATENCY_S = 0.02
FRAME_BYTES = dataset_maker.HEIGHT * dataset_maker.WIDTH * 3


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return dataset_maker.make(tmp_path_factory.mktemp("bench") / "set", lengths=(20, 15, 12))


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setenv("KATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "out"


def the_record(out, source):
    (path,) = out.glob(f"stream_{source}_*.json")
    return json.loads(path.read_text())


def test_a_store_and_a_disk_give_the_same_samples_and_figures_of_their_bytes(root, out):
    assert main(["bench", "stream", str(root), *QUICK, f"--out_dir={out}"]) == 0
    server = FileServer(root)
    with serving(server), proxied("127.0.0.1", server.port, Faults(latency_s=LATENCY_S)) as proxy:
        words = [f"--root={proxy.url}", "--mode=sarm", "--source=far", "--warmup_batches=1"]
        assert main(["bench", "stream", *words, *QUICK, f"--out_dir={out}"]) == 0
    near, far = the_record(out, "local"), the_record(out, "far")
    assert near["dataset"]["fingerprint"] == far["dataset"]["fingerprint"]
    # The disk: one frame a sample, no request.
    (node,) = near["nodes"]
    assert (node["samples"], near["ranks"][0]["frames_per_sample"]) == (24, 1)
    assert node["frames_per_s_node"] == pytest.approx(node["samples_per_s"])
    assert node["requests_per_sample"] == node["request_ms"] == 0
    assert node["fetched_bytes"] == 0
    # The store: eight frames a sample, each request after the latency.
    (node,) = far["nodes"]
    assert node["frames_per_s_node"] == pytest.approx(8 * node["samples_per_s"])
    assert node["first_batch_latency_s"] > node["open_s"] > LATENCY_S
    videos = sum(path.stat().st_size for path in root.rglob("*.mp4"))
    assert 0.5 * videos < node["fetched_bytes"] < 2 * videos
    assert len(far["ranks"][0]["resident"]) == 6, "a point after each batch"
    assert node["budget_bytes"] > FRAME_BYTES
    with (out / "stream.csv").open() as file:
        rows = {row["source"]: row for row in csv.DictReader(file)}
    assert rows.keys() == {"local", "far"}
    assert float(rows["far"]["wallclock_s"]) == node["wallclock_s"]
    assert (out / "stream.png").read_bytes().startswith(b"\x89PNG")


def rank(local_rank, **changed):
    figures = RankRun(
        local_rank=local_rank,
        open_s=0.5,
        first_batch_s=1.0,
        batch_s=[0.1, 0.3],
        batch_size=4,
        frames_per_sample=2,
        cpu_s=0.8,
        busy_s=2.0,
        work={
            "frames_asked": 16,
            "frames_held": 12,
            "frames_decoded": 8,
            "bytes_read": 600,
            "bytes_fetched": 800,
            "requests": 2,
            "request_s": 0.04,
            "store_wait_s": 0.1,
        },
        evicted=1,
        held_bytes=1000,
        fetched_bytes=900,
        stored_bytes_per_sample=50.0,
        episodes_per_batch=2.0,
        is_streamed=True,
        mixing={},
        budget_bytes=5000,
        peak_bytes=9000,
        resident=[(1.0, 100)],
    )
    return replace(figures, **changed)


def test_ranks_are_summed_per_node():
    four = [rank(0), rank(1, batch_s=[0.2, 0.6], first_batch_s=3.0), rank(0), rank(1)]
    first, second = (node_figures(node) for node in nodes_of(four))
    assert (first["ranks"], first["samples"], first["wallclock_s"]) == (2, 16, 0.8)
    assert first["samples_per_s"] == pytest.approx(16 / 0.8)
    assert first["frames_per_s_node"] == pytest.approx(32 / 0.8)
    assert first["first_batch_latency_s"] == 3.0
    assert first["bytes_per_sample"] == 1600 / 16
    assert first["read_amplification"] == 2.0
    assert first["requests_per_sample"] == 4 / 16
    assert first["request_ms"] == pytest.approx(20)
    assert first["cpu_s_per_sample"] == pytest.approx(0.1)
    assert first["peak_bytes"] == 18000
    assert first["other_cores"] == pytest.approx((2.0 - 1.6) / 0.8)
    assert (first["decoder_cache_hits"], first["decoder_cache_misses"]) == (24, 8)
    assert (first["decoder_cache_hit_rate"], first["decoder_cache_evictions"]) == (0.75, 2)
    assert first["p50_sample_latency_ms"] == pytest.approx(1e3 * 0.25 / 4)
    assert second["samples_per_s"] == pytest.approx(16 / 0.4)


def test_what_was_read_from_a_disk_is_not_what_was_fetched():
    near = node_figures([rank(0, is_streamed=False)])
    assert (near["bytes_per_sample"], near["read_amplification"]) == (600 / 8, 1.5)


def test_a_row_per_node_stands_in_the_table():
    node = node_figures([rank(0)])
    one = {
        "source": "bucket",
        "mode": "single",
        "threads": 2,
        "dataset": {"name": "a/b"},
        "settings": {"batch_size": 4, "num_batches": 2},
        "nodes": [node, node],
    }
    head, *rows = table_text([one]).splitlines()
    assert head.startswith("source,dataset,mode,node,nodes,batch_size,")
    assert [row.split(",")[:5] for row in rows] == [
        ["bucket", "a/b", "single", "0", "2"],
        ["bucket", "a/b", "single", "1", "2"],
    ]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "no dataset given"),
        (["x", "--mode=sram"], "mode=sram"),
        (["x", "--batch_size=0"], "batch_size=0"),
        (["x", "--num_batches=0"], "num_batches=0"),
        (["x", "--source=a/b"], "source=a/b"),
        (["x", "--shuffle=clip"], "dataset.shuffle=clip"),
        (["x", "--buffer_gb=1"], "dataset.buffer_gb=1"),
        (["x", "--cache_dir=y"], "dataset.cache_dir=y"),
        (["s3://me:secret@bucket/x"], "user or password"),
        (["x", "--bath_size=1"], "bath_size"),
        (["x", "y"], "'y'"),
    ],
)
def test_wrong_options_are_refused(words, what):
    with pytest.raises(ConfigError, match=what) as caught:
        read_options(BENCH.verbs["stream"], words, "kata bench stream")
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="out_dir"):
        read_options(BENCH.verbs["stream"], ["x", f"--out_dir={tmp_path}/out"], "kata bench stream")


def test_what_cannot_be_read_is_one_message(tmp_path, capsys):
    assert main(["bench", "stream", str(tmp_path), "--out_dir=null"]) == 2
    server = FileServer(tmp_path)
    with serving(server):
        assert main(["bench", "stream", server.url, "--out_dir=null"]) == 2
    for said in capsys.readouterr().err.split("kata: ")[1:]:
        assert "rule:" in said
        assert "remedy:" in said


def test_another_file_in_the_folder_is_left_alone(root, out):
    out.mkdir()
    (out / "stream_notes.json").write_text("{}")
    assert main(["bench", "stream", str(root), *QUICK, f"--out_dir={out}"]) == 0
    assert len((out / "stream.csv").read_text().splitlines()) == 2
    assert (out / "stream_notes.json").read_text() == "{}"


def test_the_ranks_of_a_node_read_different_samples_and_are_summed(root, out, tmp_path):
    words = ["bench", "stream", str(root), *QUICK, f"--out_dir={out}", "--source=two"]
    team = ranks.start(2, main, words, folder=tmp_path)
    assert team.ended() == [0, 0], team.said(0) + team.said(1)
    record = the_record(out, "two")
    (node,) = record["nodes"]
    assert (node["ranks"], node["samples"]) == (2, 2 * 24)
    assert [each["local_rank"] for each in record["ranks"]] == [0, 1]
    assert "two: " in team.said(0)
    assert team.said(1) == ""
