"""`--compile` changes how a run computes, not what: same numbers, same names; what it cannot do
runs as written.
"""

import logging

import pytest
import torch
from safetensors.torch import load_file
from torch._inductor import config as inductor_config
from torch._inductor.exc import InvalidCxxCompiler

from kata.errors import ConfigError
from kata.policies.act.blocks import DecoderLayer
from kata.policies.act.model import Policy
from kata.train import train
from kata.train.metrics.meter import read_metrics
from kata.train.model import compile
from tests.conftest import TINY_ACT
from tests.dist import ranks, scenes
from tests.train.test_every_policy import TINY, policy_run  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # the compiler's own imports

SHORT = (
    "--policy.use_vae=false",
    "--policy.n_decoder_layers=1",
    "--optimizer.type=sgd",
    "--optimizer.lr=0.01",
)
TRACED = {"backend": "aot_eager"}
"""The same graphs, without the minute that generating code for them takes."""


@pytest.fixture
def compiler(tmp_path_factory, monkeypatch):
    """Code is generated in this process, into a folder of the session."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    torch.compiler.reset()
    with inductor_config.patch(compile_threads=1):
        yield


@pytest.fixture
def traced(monkeypatch):
    monkeypatch.setattr(compile, "HOW", TRACED)
    torch.compiler.reset()


def losses(folder):
    return [
        line["loss"] for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "train"
    ]


def close(one, other, atol=1e-5):
    ours, theirs = one.state.policy.state_dict(), other.state.policy.state_dict()
    assert ours.keys() == theirs.keys()
    for key in ours:
        torch.testing.assert_close(
            ours[key], theirs[key], rtol=0, atol=atol, msg=lambda m, k=key: f"{k}: {m}"
        )


@pytest.mark.long
def test_compiled_is_what_it_was(vector_run, compiler, monkeypatch, tmp_path):
    """With dropout, and across a stop: a checkpoint is the same to a compiled run and to one
    that is not.
    """
    monkeypatch.setattr(
        Policy, "shard_units", lambda policy: [policy.model.encoder.layers[0]]
    )  # a block is enough

    def run(folder, steps, compile, *more):
        made = vector_run(
            *SHORT,
            f"--output_dir={tmp_path}/{folder}",
            f"--steps={steps}",
            f"--compile={compile}",
            *more,
        )
        trained = train(made)
        assert not trained.remarks
        return trained

    straight = run("straight", 4, "false")
    run("first", 2, "true")
    run("then", 2, "false")
    for ended in (
        run("first", 4, "false", "--resume=true"),
        run("then", 4, "true", "--resume=true"),
    ):
        close(straight, ended)
        assert losses(ended.folder) == pytest.approx(losses(straight.folder), rel=1e-5)


@pytest.mark.parametrize(
    "name", [n if n == "tdmpc" else pytest.param(n, marks=pytest.mark.long) for n in TINY]
)
def test_every_block_can_be_compiled(name, policy_run, traced):  # noqa: F811
    options = ("--optimizer.type=sgd", "--optimizer.lr=0.01")
    faster = train(policy_run(name, "compiled", *options, "--compile=true"))
    assert not faster.remarks
    close(train(policy_run(name, "written", *options)), faster)


@pytest.mark.long
@pytest.mark.parametrize(
    "sharded", [(), ("--parallelism.dp_shard=2", "--gradient_checkpointing=true")]
)
def test_two_compiled_ranks_are_one(sharded, vector_run, vector_dataset, tmp_path):
    still = (*SHORT, "--policy.dropout=0", "--batch_size=2")
    data = (f"--dataset.root={vector_dataset}", "--dataset.repo_id=tests/vectors")
    args = [*data, *TINY_ACT, *still, *sharded, f"--output_dir={tmp_path}/two"]
    group = ranks.start(2, scenes.train_compiled, args, folder=tmp_path / "out")
    assert group.ended() == [0, 0], group.said(0) + group.said(1)
    assert "uncompiled" not in group.said(0) + group.said(1)
    one = train(vector_run(*still, "--batch_size=4")).state.policy.state_dict()
    two = load_file(
        tmp_path / "two" / "checkpoints" / "last" / "pretrained_model" / "model.safetensors"
    )
    for key in one:
        torch.testing.assert_close(
            two[key], one[key], rtol=0, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}"
        )


def without_compiler(graph, inputs):
    raise InvalidCxxCompiler


@pytest.mark.parametrize(
    "how", [{"backend": without_compiler}, pytest.param(compile.HOW, marks=pytest.mark.long)]
)
def test_without_a_compiler_the_run_goes_on(how, vector_run, compiler, caplog, monkeypatch):
    """The error is that of the code generator, raised as soon as it is asked."""
    monkeypatch.setattr(compile, "HOW", how)
    absent = inductor_config.patch({"cpp.cxx": ("/no/such/compiler",)})
    with absent, caplog.at_level(logging.WARNING, logger="kata"):
        trained = train(vector_run(*SHORT, "--compile=true"))
    assert trained.state.step == 6
    assert trained.remarks == [
        "--compile: 2 of 2 blocks ran uncompiled (model.encoder.layers.0, model.decoder.layers.0): "
        "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: "
        "('/no/such/compiler',)"
    ]
    assert [
        r.message.partition(" runs")[0] for r in caplog.records if "--compile" in r.message
    ] == ["--compile: model.encoder.layers.0"]


def test_what_breaks_is_named_and_the_rest_stays_compiled(vector_run, traced, tmp_path):
    """A block that asks for a tensor's value cannot be compiled as a whole."""
    run = vector_run(*SHORT, "--compile=true")
    whole = DecoderLayer.forward

    def asks(self, x, *rest):
        assert x.sum().item() < 1e6
        return whole(self, x, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecoderLayer, "forward", asks)
        trained = train(run)
    (said,) = trained.remarks
    assert said.startswith("--compile: 1 of 2 blocks ran uncompiled (model.decoder.layers.0): ")
    assert "data-dependent" in said
    close(trained, train(vector_run(*SHORT, f"--output_dir={tmp_path}/written")))


def test_a_policy_that_compiles_itself_is_refused(policy_run):  # noqa: F811
    with pytest.raises(ConfigError, match="compiled once"):
        train(policy_run("diffusion", "twice", "--policy.compile_model=true", "--compile=true"))
