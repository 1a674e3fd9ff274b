"""Actor and learner over TLS with a token, and a certificate that nobody vouches for."""

import shutil
import subprocess

import pytest

from kata.errors import ConfigError
from kata.rl.network.wire import NetworkError
from tests.rl.network.pendulum import act, free_port, learn, running

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate of 127.0.0.1, its key, and a token."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", "/CN=learner", "-addext",
            "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem",
        ],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    (folder / "token").write_text("f" * 32)
    (folder / "token").chmod(0o600)
    return folder


def serving(files):
    return (
        f"--rl.certificate={files}/certificate.pem",
        f"--rl.private_key={files}/key.pem",
        f"--rl.token_file={files}/token",
    )


def test_episodes_and_weights_travel_over_tls(files, tmp_path):
    token = f"--rl.token_file={files}/token"
    with running(tmp_path / "run", *serving(files), "--policy.online_steps=24") as (port, sessions):
        https = f"--rl.learner=https://127.0.0.1:{port}"
        # 1. Without the certificate nothing is sent, and nobody waits for ten minutes.
        with pytest.raises(NetworkError, match="certificate is not trusted") as error:
            act(tmp_path / "a", port, "a", https, token)
        assert "--rl.ca_file" in error.value.remedy
        # 2. A name that the certificate does not have.
        trusted = f"--rl.ca_file={files}/certificate.pem"
        with pytest.raises(NetworkError, match=r"Hostname mismatch|IP address mismatch"):
            act(tmp_path / "a", port, "a", f"--rl.learner=https://localhost:{port}", token, trusted)
        # 3. Without TLS the actor is told at once which address the learner has.
        with pytest.raises(NetworkError, match="the learner speaks https") as error:
            act(tmp_path / "a", port, "a", token)
        assert error.value.remedy == f"--rl.learner=https://127.0.0.1:{port}"
        # 4. With both, all is there.
        acted = act(tmp_path / "a", port, "a", https, token, trusted)
    assert acted.steps == sessions[0].learner.steps >= 24


def test_a_learner_without_tls_is_told_at_once(tmp_path):
    with running(tmp_path / "run") as (port, _), pytest.raises(NetworkError) as error:
        act(tmp_path / "a", port, "a", f"--rl.learner=https://127.0.0.1:{port}")
    assert error.value.remedy == f"--rl.learner=http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("certificate", "key"), [("key.pem", "key.pem"), ("certificate.pem", "absent.pem")]
)
def test_files_that_are_no_certificate_are_refused(certificate, key, files, tmp_path):
    given = (f"--rl.certificate={files}/{certificate}", f"--rl.private_key={files}/{key}")
    with pytest.raises(ConfigError, match="PEM files"):
        learn(tmp_path / "run", free_port(), *given)
    with pytest.raises(ConfigError, match="a PEM file of certificates"):
        act(tmp_path / "a", 1, "a", f"--rl.ca_file={files}/token")
