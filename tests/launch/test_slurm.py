"""The batch script, run by stand-ins for SLURM's commands; `make slurm` runs it under the real
ones.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kata.cli import LAUNCH, main
from kata.config.verb import read_options

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
WAIT_S = 60.0
TRAIN = ["train", "--policy.type=act", "--dataset.repo_id=a/b", "--policy.push_to_hub=false"]

SRUN = """\
#!/bin/bash
# Every node's task on this machine, as `srun --ntasks=2` starts them; the options are noted.
echo "$@" >> "$FAKE/srun"
while [[ $1 == --* ]]; do shift; done
for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@" & tasks+=($!); done
status=0
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit $status
"""
SCONTROL = """\
#!/bin/bash
case "$*" in
    "show hostnames"*) printf 'n1\\nn2\\n' ;;
    "-o show node n1") echo "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=n1" ;;
    "-o show job 12") echo "JobId=12 JobState=RUNNING Reason=None Restarts=1 RunTime=00:01:00 NodeList=n[1-2]" ;;
    "-o show job"*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
    *) echo "$@" >> "$FAKE/scontrol" ;;
esac
"""  # noqa: E501
TORCHRUN = f"""\
#!/bin/bash
# Stands for python -m torch.distributed.run: a rank that saves when it is asked to, or fails.
echo "$@" >> "$FAKE/torchrun"
trap ':' USR1  # as a rank that minds the signal
exec {sys.executable} - <<'EOF'
import os, signal, sys, time
from pathlib import Path
fake = Path(os.environ["FAKE"])
def save(number, frame):
    Path(os.environ["KATA_STOPPED_NOTE"]).touch()
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
with open(os.environ["KATA_RANK_PIDS"] + os.environ["SLURM_NODEID"], "a") as pids: pids.write(f"{{os.getpid()}}\\n")
if os.environ["MODE"] == "fails": sys.exit(3)
(fake / ("up" + os.environ["SLURM_NODEID"])).touch()
time.sleep(0 if os.environ["MODE"] == "ends" else 600)
EOF
"""  # noqa: E501


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Path:
    """SLURM's commands, each noting what it was asked, first in PATH."""
    fake = tmp_path / "fake"
    (fake / "bin").mkdir(parents=True)
    sbatch = '#!/bin/bash\ncp "${@: -1}" "$FAKE/submitted"\necho "12;cluster"\n'
    scancel = '#!/bin/bash\necho "$@" >> "$FAKE/scancel"\n'
    sacct = '#!/bin/bash\n[ "$5" = 11 ] && echo "COMPLETED|0:0|00:10:00|n1"\nexit 0\n'
    scripts = {
        "srun": SRUN,
        "scontrol": SCONTROL,
        "python": TORCHRUN,
        "sbatch": sbatch,
        "scancel": scancel,
    }
    for name, text in {**scripts, "sacct": sacct}.items():
        (fake / "bin" / name).write_text(text)
        (fake / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(fake))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


def written(capsys, tmp_path, *options: str, train=()) -> str:
    where = (
        [f"--output_dir={tmp_path}/run"] if not any("output_dir" in word for word in train) else []
    )
    assert (
        main(["launch", "--target=slurm", "--dry-run", *options, "--", *TRAIN, *where, *train]) == 0
    )
    return capsys.readouterr().out


def test_the_dry_run_prints_the_whole_script(capsys, tmp_path):
    text = written(
        capsys,
        tmp_path,
        *(
            "--nodes=2",
            "--gpus-per-node=4",
            "--time=12:00:00",
            "--cpus-per-task=48",
            "--partition=gpu",
            "--mem=0",
        ),
        *(
            "--setup=module load cuda",
            "--env=GREETING=a b's",
            "--sbatch=[--exclusive]",
            "--job-name=my run",
        ),
        train=("--rename_map={'a': 'b'}",),
    )
    directives = [
        line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")
    ]
    for expected in (
        *(
            "--job-name=my-run",
            "--nodes=2",
            "--ntasks-per-node=1",
            "--gpus-per-node=4",
            "--cpus-per-task=48",
        ),
        *(
            "--time=12:00:00",
            "--partition=gpu",
            "--mem=0",
            "--signal=B:USR1@300",
            "--requeue",
            "--open-mode=append",
        ),
        *(f"--output={Path.cwd()}/outputs/launch/%j.log", f"--chdir={Path.cwd()}", "--exclusive"),
    ):
        assert expected in directives
    assert "\nmodule load cuda\nexport GREETING='a b'\"'\"'s'\n" in text
    assert "-m torch.distributed.run --node-rank" in text
    assert "--nnodes=2 --nproc-per-node=4 --max-restarts=0 -m kata.launch.slurm_rank_entry" in text
    assert "'--rename_map={'\"'\"'a'\"'\"': '\"'\"'b'\"'\"'}' --resume=true" in text
    assert "@" not in text.replace("B:USR1@300", "").replace('"$@"', "")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_stated_resume_is_not_doubled_and_requeueing_can_be_left_out(capsys, tmp_path):
    text = written(capsys, tmp_path, "--requeue=false", train=("--resume=true",))
    assert text.count("--resume=true &") == 1
    assert text.count("--resume=true") == 2  # and once in the script's own explanation
    assert "#SBATCH --no-requeue" in text
    assert "scontrol requeue" not in text


def start(cluster: Path, text: str, mode: str) -> subprocess.Popen:
    path = cluster.parent / "job.sbatch"
    path.write_text(text)
    job = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NNODES": "2",
        "MODE": mode,
    }
    job["SLURM_CPUS_ON_NODE"] = "6"
    return subprocess.Popen(
        ["bash", str(path)], env={**os.environ, **job}, stdout=subprocess.PIPE, text=True
    )


def for_cluster(capsys, tmp_path, cluster: Path, *options: str) -> str:
    (tmp_path / "outputs/launch").mkdir(parents=True)
    named = (
        "--nodes=2",
        "--gpus-per-node=0",
        "--ranks-per-node=2",
        f"--python={cluster}/bin/python",
    )
    return written(capsys, tmp_path, *named, *options)


def test_a_run_that_is_signalled_saves_and_goes_back_into_the_queue(capsys, tmp_path, cluster):
    process = start(cluster, for_cluster(capsys, tmp_path, cluster), "waits")
    deadline = time.monotonic() + WAIT_S
    while len(list(cluster.glob("up*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert "meeting at 10.0.0.1:" in out
    assert "OMP_NUM_THREADS=3" in out
    assert out.splitlines()[-2:] == [
        "kata: signalled: asking the ranks to save",
        "kata: stopped and saved",
    ]
    assert (cluster / "scontrol").read_text() == f"requeue {os.getpid()}\n"
    assert not list((tmp_path / "outputs/launch").iterdir())
    port = 20_000 + os.getpid() % 20_000
    for node, line in enumerate(sorted((cluster / "torchrun").read_text().splitlines())):
        assert line.startswith(
            f"-m torch.distributed.run --node-rank={node} --master-addr=10.0.0.1 "
            f"--master-port={port}"
        )


def test_without_requeueing_it_leaves_with_85(capsys, tmp_path, cluster):
    process = start(cluster, for_cluster(capsys, tmp_path, cluster, "--requeue=false"), "waits")
    while len(list(cluster.glob("up*"))) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 85
    assert not (cluster / "scontrol").exists()


@pytest.mark.parametrize(("mode", "status"), [("ends", 0), ("fails", 3)])
def test_a_run_that_ends_or_fails_is_not_requeued(capsys, tmp_path, cluster, mode, status):
    process = start(cluster, for_cluster(capsys, tmp_path, cluster), mode)
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == status
    assert out.endswith(f"kata: ended with exit status {status}\n")
    assert not (cluster / "scontrol").exists()


def rank(tmp_path, code: str) -> tuple[int, bool]:
    note = tmp_path / "note"
    names = {
        "KATA_STOPPED_NOTE": str(note),
        "KATA_RANK_PIDS": str(tmp_path / "pids"),
        "SLURM_NODEID": "1",
    }
    script = f"import os, runpy, signal, sys\nrunpy.run_module = lambda *a, **k: {code}\n"
    script += "from kata.launch.slurm_rank_entry import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **names}, check=False, timeout=WAIT_S
    )
    assert len((tmp_path / "pids1").read_text().split()) == 1
    return done.returncode, note.exists()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("sys.exit(85)", (0, True)),
        ("sys.exit(0)", (0, False)),
        ("sys.exit(2)", (2, False)),
        ("os.kill(os.getpid(), signal.SIGUSR1)", (0, True)),
    ],
)
def test_torchrun_is_told_that_one_that_saved_is_no_failure(tmp_path, code, expected):
    assert rank(tmp_path, code) == expected


def test_a_job_is_submitted_looked_at_and_cancelled(capsys, tmp_path, cluster):
    launch = ["launch", "--target=slurm", "--nodes=2", "--", *TRAIN, f"--output_dir={tmp_path}/run"]
    assert main(launch) == 0
    out = capsys.readouterr().out
    assert "job 12: " in out
    assert "kata launch cancel 12" in out
    assert (cluster / "submitted").read_text() == (
        tmp_path / "outputs/launch/act.sbatch"
    ).read_text()
    assert main(["launch", "status", "12"]) == 0
    assert (
        capsys.readouterr().out
        == "job 12: RUNNING, reason None, ran 00:01:00, restarts 1, nodes n[1-2]\n"
    )
    assert main(["launch", "status", "11"]) == 0
    assert capsys.readouterr().out == "job 11: COMPLETED, 0:0, 00:10:00, n1\n"
    assert main(["launch", "logs", "12"]) == 2
    assert "a job's output appears when it starts" in capsys.readouterr().err
    (tmp_path / "outputs/launch/12.log").write_text("from the shell\n")
    (tmp_path / "outputs/launch/12-node0.log").write_text("from rank 0\n")
    done = subprocess.run(
        [sys.executable, "-m", "kata", "launch", "logs", "12"], capture_output=True, text=True
    )
    assert "from the shell\n" in done.stdout
    assert "from rank 0\n" in done.stdout
    assert main(["launch", "cancel", "12"]) == 0
    assert (cluster / "scancel").read_text() == "12\n"


def test_what_sbatch_refuses_is_said(capsys, tmp_path, cluster):
    (cluster / "bin/sbatch").write_text(
        "#!/bin/bash\necho 'invalid partition specified: gpu' >&2\nexit 1\n"
    )
    assert main(["launch", "--target=slurm", "--", *TRAIN, f"--output_dir={tmp_path}/run"]) == 2
    assert "invalid partition specified: gpu" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--time=12:00:00"], ["--time", "12:00:00"]])
def test_a_time_limit_stays_as_slurm_reads_it(flag):
    found = read_options(LAUNCH, ["--target=slurm", *flag, "--cpus-per-task=3"], "kata launch")
    assert (found.time, found.cpus_per_task) == ("12:00:00", 3)


@pytest.mark.parametrize(
    ("options", "train", "value"),
    [
        (["--time=2h"], (), "time=2h"),
        (["--nodes=0"], (), "nodes=0"),
        (["--gpus-per-node=0"], (), "ranks_per_node=0"),
        (["--ranks-per-node=2"], (), "ranks_per_node=2"),
        (["--env=[lonely]"], (), "env=[lonely]"),
        (["--sbatch=[exclusive]"], (), "sbatch=[exclusive]"),
        (["--gpus=4"], (), "--gpus: an option of --target=local"),
        ([], ("--output_dir=null",), "output_dir: not given"),
        (
            ["--nodes=3"],
            ("--global_batch_size=8", "--output_dir=x"),
            "global_batch_size=8 on 3 ranks",
        ),
        ([], ("--output_dir={taken}",), "output_dir={taken}"),
    ],
)
def test_bad_input(capsys, tmp_path, options, train, value):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    train = [word.format(taken=tmp_path / "taken") for word in train] or [
        f"--output_dir={tmp_path}/run"
    ]
    assert main(["launch", "--target=slurm", "--dry-run", *options, "--", *TRAIN, *train]) == 2
    assert f"kata: {value.format(taken=tmp_path / 'taken')}" in capsys.readouterr().err


def test_without_slurm_the_dry_run_is_offered(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "--target=slurm", "--", *TRAIN, f"--output_dir={tmp_path}/run"]) == 2
    err = capsys.readouterr().err
    assert "sbatch: no such command" in err
    assert "--dry-run prints the script" in err
