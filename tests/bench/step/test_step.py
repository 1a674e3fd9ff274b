"""`kata bench step`: the table beside a peer's counts, and what is refused."""

import json

import pytest

from kata.bench.step.command import counts_of_trace, peer_counts, rows, step
from kata.bench.step.options import StepBench
from kata.errors import ConfigError


def test_counts_leave_out_the_making_of_the_batch(small_trace):
    counts = counts_of_trace(small_trace, 8)
    launched = sum(n for phase, n in counts["launches"].items() if phase != "input")
    assert sum(counts["by_name"].values()) == launched
    assert counts["saved_bytes"] == small_trace.saved_bytes(8)
    table = rows({"act": {"kata": counts, "lerobot": {**counts, "host_waits": 3}}})
    assert table[1][:3] == ("act", str(launched), str(launched))
    assert table[1][-1] == "0 / 3"


def test_the_peers_counts_stand_beside_katas(small_trace, monkeypatch, tmp_path, capsys):
    counts = {"launches": {"input": 1, "forward": 7}, "flops": 2e9, "saved_bytes": 3_000_000}
    peer = tmp_path / "peer"
    peer.write_text(f"#!/bin/sh\necho '{json.dumps(counts | {'host_waits': 4})}'\n")
    peer.chmod(0o755)
    monkeypatch.setattr("kata.plan.tracing.trace.trace_step", lambda run: small_trace)
    options = StepBench(policies=["act"], peer=str(peer), out=str(tmp_path / "results"))
    assert step(options) == 0
    assert "3.0" in capsys.readouterr().out
    (kept,) = (tmp_path / "results").iterdir()
    assert json.loads(kept.read_text())["policies"]["act"]["lerobot"]["flops"] == 2e9


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"policies": ["atc"]}, "act"),
        ({"peer": "/no/python"}, "make peer"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_options_are_refused(wrong, hint):
    with pytest.raises(ConfigError) as raised:
        StepBench(**wrong)
    assert hint in str(raised.value)


def test_a_peer_that_fails_is_named(tmp_path):
    peer = tmp_path / "peer"
    peer.write_text("#!/bin/sh\necho 'no lerobot here' >&2\nexit 1\n")
    peer.chmod(0o755)
    with pytest.raises(ConfigError, match="no lerobot here") as raised:
        peer_counts("act", StepBench(peer=str(peer)))
    assert "--policies" in raised.value.remedy


def test_a_table_of_all_policies_goes_on_where_the_peer_fails(
    small_trace, monkeypatch, tmp_path, capsys, caplog
):
    counts = counts_of_trace(small_trace, 8)
    monkeypatch.setattr("kata.bench.step.command.own_counts", lambda *_: counts)
    monkeypatch.setattr("kata.bench.step.command.types_from_recordings", lambda: ["act", "vqbet"])
    peer = tmp_path / "peer"
    answer = json.dumps(counts | {"host_waits": 4})
    peer.write_text(f"#!/bin/sh\n[ $3 = act ] && exit 1\necho '{answer}'\n")
    peer.chmod(0o755)
    out = str(tmp_path / "results")
    assert step(StepBench(peer=str(peer), out=out)) == 0
    assert "act: no message" in caplog.text
    assert "0 / 4" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="act: no message"):
        step(StepBench(policies=["act"], peer=str(peer), out=out))
