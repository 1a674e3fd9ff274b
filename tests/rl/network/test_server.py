"""What the learner's server refuses: each with one message, and nothing kept."""

import json
import re

import httpx
import numpy as np
import pytest

from kata.errors import ConfigError
from kata.rl.episodes.episode import PlayedEpisode
from kata.rl.network.courier import Line
from kata.rl.network.options import resolve_act, resolve_learn
from kata.rl.network.wire import ACTOR, INSTANCE, RUN, UPDATES, VERSION, WEIGHTS, library
from kata.rl.trainer import RunSession
from tests.rl.network.pendulum import ENV, free_port, learn, running
from tests.rl.network.pendulum import RUN as LEARN

TOKEN = "0123456789abcdef" * 2


def episode(steps=12, **changes):
    parts = {
        "observations": {"observation.state": np.zeros((steps + 1, 3), np.float32)},
        "action": np.zeros((steps, 1), np.float32),
        "reward": np.zeros(steps, np.float32),
        "penalty": np.zeros(steps, np.float32),
        "intervention": np.zeros(steps, np.bool_),
        "terminated": False,
    }
    return PlayedEpisode(**{**parts, **changes}).to_bytes()


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    """A learner that asks for a token: a client with it that has said hello, and the run."""
    folder = tmp_path_factory.mktemp("served")
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    args = (f"--rl.token_file={token}", "--policy.online_step_before_learning=100000")
    with running(folder / "run", *args) as (port, sessions):
        url = f"http://127.0.0.1:{port}/v1"
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}) as client:
            facts = client.get("/run").json()
            who = {RUN: facts["run_id"], ACTOR: "arm", INSTANCE: "1" * 32, WEIGHTS: "0"}
            client.headers.update(who)
            hello = {
                "run_id": facts["run_id"], "name": "arm", "instance": "1" * 32,
                "schema": facts["schema"], "env": facts["env"],
            }  # fmt: skip
            assert client.post("/hello", json=hello).json() == {"next_sequence": 0, "steps": 0}
            yield client, hello, sessions[0]


def test_a_weight_is_waited_for_and_comes_once(learner):
    client, *_ = learner
    first = client.get("/weights?have=")
    assert first.status_code == 200
    assert int(first.headers[WEIGHTS]) == int(first.headers[UPDATES]) == 0
    assert client.get(f"/weights?have={first.headers[VERSION]}").status_code == 204


def test_an_episode_counts_once_however_often_it_comes(learner):
    client, _, session = learner
    for _ in range(2):
        assert client.put("/episodes/0", content=episode()).status_code == 204
    assert len(session.journal.entries) == 1
    answer = client.put("/episodes/0", content=episode(7))
    assert answer.status_code == 409
    assert "another episode 0 is in the journal" in answer.json()["what"]


NAN = np.full((12, 1), np.nan, np.float32)
FAR = np.full((12, 1), 1e30, np.float32)
WIDE = np.zeros((12, 2), np.float32)
ODD = b'{"__metadata__": {"kata": "{\\"terminated\\": true, \\"success\\": null, \\"seed\\": 0}"}, '


def safetensors(header):
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (episode(action=NAN), 422, "action with numbers that are not finite"),
        (episode(action=FAR), 422, "the action 1e+30 at step 0 in dimension 0"),
        (episode(action=WIDE), 422, "action F32 [12, 2], not [12, 1]"),
        (episode(reward=np.zeros(12, np.float64).astype(np.uint8)), 422, "reward U8"),
        (episode(observations={"x": np.zeros((13, 3), np.float32)}), 422, "observation.state, x"),
        (episode()[:-1], 422, "bytes of arrays"),
        (b"\x80\x04pickled", 422, "a header of"),
        (safetensors(b"[" * 5000), 422, "cannot be read"),
        (
            safetensors(ODD + b'"reward": {"shape": ["x"], "data_offsets": [0, 0]}}'),
            422,
            "a body that cannot be read",
        ),
        (episode(terminated="no"), 422, "terminated is 'no'"),
        (episode(14), 413, "14 steps"),
        (bytes(70_000), 413, "a body of 70000 bytes"),
        (b"", 422, "a header of 0 bytes"),
    ],
    ids=[
        "nan", "far", "shape", "dtype", "name", "short", "pickle", "nested", "no number", "word",
        "long", "large", "empty",
    ],
)  # fmt: skip
def test_bodies_that_are_no_episode_are_refused(body, status, said, learner):
    client, _, session = learner
    before = len(session.journal.entries)
    answer = client.put(f"/episodes/{before}", content=body)
    assert answer.status_code == status
    assert said in answer.json()["what"]
    assert answer.json()["remedy"]
    assert len(session.journal.entries) == before


@pytest.mark.parametrize(
    ("headers", "path", "status", "said"),
    [
        ({"authorization": "Bearer wrong"}, "/episodes/5", 401, "token: another one"),
        ({"authorization": ""}, "/episodes/5", 401, "token: not given"),
        ({}, "/episodes/5", 409, "episode 1 is not in the journal"),
        ({}, "/episodes/-1", 400, "'-1'"),
        ({WEIGHTS: "many"}, "/episodes/1", 400, "'many'"),
        ({RUN: "other"}, "/episodes/1", 403, "run 'other'"),
        ({INSTANCE: "2" * 32}, "/episodes/1", 409, "another actor of this run has that name"),
        ({ACTOR: "leg"}, "/episodes/1", 409, "actor leg: unknown"),
    ],
)
def test_requests_of_others_are_refused(headers, path, status, said, learner):
    client, _, session = learner
    if not session.journal.entries:
        client.put("/episodes/0", content=episode())
    answer = client.put(path, content=episode(), headers=headers)
    assert answer.status_code == status
    assert said in answer.json()["what"]
    assert len(session.journal.entries) == 1


def test_requests_outside_the_protocol_are_refused(learner):
    client, *_ = learner
    for path, status in (("/secrets", 404), ("/episodes/0", 405)):
        answer = client.get(path)
        assert answer.status_code == status
        assert answer.json()["what"] == f"GET /v1{path}: no such request"
        assert answer.json()["remedy"]


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"schema": "0" * 16}, 409, "episodes of the schema 0000"),
        ({"env": {}}, 409, "another environment: id None (the learner's: Pendulum-v1); fps None"),
        ({"run_id": "x"}, 403, "run 'x'"),
        ({"name": 3}, 400, "name is not of the type str"),
        ({"more": 1}, 400, "fields run_id"),
        ({"name": ""}, 400, "actor ''"),
        ({"name": "a/b\n\x1b[31mred"}, 400, "actor 'a/b\\n\\x1b[31mred'"),
        ({"name": "a" * 3000}, 400, "actor 'aaa"),
        ({"name": "\xfc"}, 400, "actor '\xfc'"),
        ({"name": "leg", "instance": "x"}, 400, "the instance 'x'"),
        ({"instance": "3" * 32}, 409, "has that name"),
    ],
)
def test_a_wrong_hello_is_refused(changes, status, said, learner):
    client, hello, session = learner
    known = (session.folder / "actors.json").read_bytes()
    answer = client.post("/hello", content=json.dumps({**hello, **changes}))
    assert answer.status_code == status
    assert (session.folder / "actors.json").read_bytes() == known
    assert said in answer.json()["what"]


def test_a_full_journal_refuses_and_goes_on(learner, monkeypatch):
    client, _, session = learner

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    number = len(session.journal.entries)
    with monkeypatch.context() as patched:
        patched.setattr("kata.rl.episodes.journal.write_durably", full)
        answer = client.put(f"/episodes/{number}", content=episode())
    assert answer.status_code == 507
    assert "no room for the journal (ENOSPC)" in answer.json()["what"]
    assert client.put(f"/episodes/{number}", content=episode()).status_code == 204


def test_an_actor_that_cannot_be_remembered_is_told_to_ask_again(learner, monkeypatch):
    client, hello, session = learner
    leg = {**hello, "name": "leg"}

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("kata.rl.network.members.write_json", full)
        for _ in range(2):
            answer = client.post("/hello", content=json.dumps(leg))
            assert answer.status_code == 507
            assert "no room for" in answer.json()["what"]
    assert "leg" not in (session.folder / "actors.json").read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--rl.host=0.0.0.0"], "rl.host=0.0.0.0 without rl.token_file"),
        (["--rl.certificate=x"], "one without the other"),
        (["--rl.prot=1"], "rl.port"),
        (["--rl.publish_every=soon"], "soon"),
    ],
)
def test_a_learner_with_impossible_options_is_refused(args, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        resolve_learn([*LEARN, *args])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (ENV, "rl.learner: not given"),
        (["--rl.learner=http://x"], "env.type: not given"),
        ([*ENV, "--rl.learner=arm.local:5"], "http://"),
        ([*ENV, "--rl.learner=http://x", "--rl.name=a/b"], "a/b"),
    ],
)
def test_an_actor_with_impossible_options_is_refused(args, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        resolve_act([*args, "--output_dir=x"])


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [(TOKEN, 0o644, "mode 644"), ("short", 0o600, "a token of 5"), (None, 0, "cannot be read")],
)
def test_a_token_file_that_protects_nothing_is_refused(text, mode, said, tmp_path):
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    args = [*ENV, "--output_dir=x", "--rl.learner=http://127.0.0.1:1", f"--rl.token_file={file}"]
    with pytest.raises(ConfigError, match=said):
        Line(resolve_act(args).rl)


def test_a_port_that_is_taken_and_a_wrong_certificate_are_told(tmp_path, learner):
    client, *_ = learner
    with pytest.raises(ConfigError, match=r"rl\.port="):
        learn(tmp_path / "run", client.base_url.port)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"rl\.certificate="):
        learn(
            tmp_path / "run", free_port(), f"--rl.certificate={wrong}", f"--rl.private_key={wrong}"
        )


def test_a_port_that_is_taken_is_told_before_anything_is_cloned(tmp_path, learner, monkeypatch):
    client, *_ = learner

    def clone(self):
        raise AssertionError("cloned")

    monkeypatch.setattr(RunSession, "clone_first", clone)
    with pytest.raises(ConfigError, match=r"rl\.port="):
        learn(tmp_path / "run", client.base_url.port)
    assert not (tmp_path / "run").exists()


def test_a_learner_that_is_stopped_without_an_episode_ends_as_it_should(tmp_path):
    with running(tmp_path / "run", "--report=true") as (_, sessions):
        sessions[0].stop.reason = "SIGTERM"
    assert "No episode was played yet" in (tmp_path / "run/report.html").read_text()


def test_without_the_extra_one_message_says_what_to_install():
    with pytest.raises(ConfigError, match="uv pip install 'kata\\[rl\\]'"):
        library("kata_has_no_such_module")


def test_an_actor_tells_success_by_the_learners_classifier(tmp_path):
    from types import SimpleNamespace

    from kata.errors import PolicyError
    from kata.rl.episodes.episode import Schema
    from kata.rl.network.act import _judge

    (tmp_path / "model.safetensors").write_bytes(b"other")

    def asked(folder, judge):
        options = SimpleNamespace(rl=SimpleNamespace(classifier=folder), device="cpu")
        return _judge(options, SimpleNamespace(judge=judge), schema)

    wanted = {"digest": "0123456789abcdef", "threshold": 0.5}
    schema = Schema({"observation.state": (2,)}, (), 2)
    assert asked(None, {}) is None
    for folder, judge, said in (
        (None, wanted, "copy the learner's folder"),
        (str(tmp_path), wanted, "the learner's is 0123456789abcdef"),
        (str(tmp_path), {}, "leave out --rl.classifier"),
    ):
        with pytest.raises(PolicyError, match=said):
            asked(folder, judge)
