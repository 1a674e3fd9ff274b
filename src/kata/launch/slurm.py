"""`kata launch --target=slurm`: the batch script, and its submission to SLURM.

SLURM signals the batch shell alone (`--signal=B:`). The shell then signals each rank once, in a
separate step, because clusters differ in which processes of a step a signal reaches. torchrun exits
with 1 whatever its ranks exit with. So a rank that was stopped and has saved notes it in a file
(`kata.launch.slurm_rank_entry`), and the shell requeues the job.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kata.errors import ConfigError, KataError
from kata.launch.options import Slurm
from kata.launch.train_args import checked_run, refuse_taken
from kata.log import redacted
from kata.run import Run


def launch_slurm(options: Slurm, args: Sequence[str]) -> int:
    """Write the batch script of `kata <args>` and submit it; print it instead with dry_run."""
    run = checked_run(args, options.nodes * options.per_node)
    _check_folder(run)
    options = with_planned_time(options, run)
    log_dir = Path(options.log_dir).expanduser().absolute()
    text = script(options, run, args, log_dir)
    if options.dry_run:
        print(text, end="")
        return 0
    log_dir.mkdir(parents=True, exist_ok=True)
    path = log_dir / f"{_job_name(options, run)}.sbatch"
    path.write_text(text, encoding="utf-8")
    job = slurm("sbatch", "--parsable", str(path)).strip().partition(";")[0]
    print(f"job {job}: {path}\n  output: {log_dir}/{job}.log, and {job}-node<n>.log of each node")
    print(f"  kata launch status {job} | kata launch logs {job} | kata launch cancel {job}")
    return 0


def with_planned_time(options: Slurm, run: Run) -> Slurm:
    """Return the options with a time limit from the plan, where the GPU is named and `time` is not.

    The limit is the longest planned time, and the time that saving takes before it.

    Raises:
        ConfigError: the GPU is unknown, or a job that is not requeued would end before its run.
    """
    if options.gpu is None:
        return options
    # Here, since plans import the data engine, which other launches do not need.
    from kata.launch.planning import time_limit
    from kata.plan.catalogue import gpu_named
    from kata.plan.forecast import Machine

    ranks = options.nodes * options.per_node
    machine = Machine(gpu=gpu_named(options.gpu), ranks=ranks, nodes=options.nodes)
    found = time_limit.launch_forecast(run, machine)
    if found is None:
        return options
    needed = time_limit.slurm_time(found.wall_clock_s(run.steps)[2] + options.signal_s)
    if options.time is None:
        return replace(options, time=needed)
    if not options.requeue:
        longer = f"--time={needed} before --; or --requeue=true; or fewer --steps after --"
        limit_s = time_limit.slurm_seconds(options.time) - options.signal_s
        time_limit.check_limit(found, limit_s, "time", longer)
    return options


def slurm(*command: str) -> str:
    """Return what a command of SLURM prints.

    Raises: ConfigError where this machine has none; KataError with its words if it fails.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"{command[0]}: no such command",
            rule="jobs are handed to SLURM by its own commands",
            remedy="run this on a login node of the cluster; --dry-run prints the script anywhere",
        )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KataError(
            f"{' '.join(command[:2])}: "
            f"{redacted(done.stderr.strip() or f'exit status {done.returncode}')}",
            rule="SLURM takes what it is given",
            remedy="correct what it names: partition, account, limits (`sinfo`, `sacctmgr show "
            "assoc`)",
        )
    return done.stdout


def script(options: Slurm, run: Run, args: Sequence[str], log_dir: Path) -> str:
    """The batch script of `kata <args>`."""
    python = options.python or sys.executable
    port = str(options.port) if options.port else "$((20000 + SLURM_JOB_ID % 20000))"
    torchrun = [
        f"--nnodes={options.nodes}",
        f"--nproc-per-node={options.per_node}",
        "--max-restarts=0",
    ]
    train = [*args, *([] if run.resume else ["--resume=true"])]
    fields = {
        "@DIRECTIVES@": "\n".join(f"#SBATCH {each}" for each in directives(options, run, log_dir)),
        "@SETUP@": "\n".join(
            [*options.setup, *(f"export {_quoted(entry)}" for entry in options.env)]
        )
        or ":",
        "@LOGS@": shlex.quote(str(log_dir)),
        "@PORT@": port,
        "@RANKS@": str(options.per_node),
        "@SECONDS@": str(options.signal_s),
        "@PYTHON@": shlex.quote(python),
        "@TORCHRUN@": shlex.join(torchrun),
        "@TRAIN@": shlex.join(train),
        "@AGAIN@": REQUEUE if options.requeue else NO_REQUEUE,
    }
    text = SCRIPT
    for name, value in fields.items():
        text = text.replace(name, value)
    return text


def directives(options: Slurm, run: Run, log_dir: Path) -> list[str]:
    """Return the `#SBATCH` lines, with sbatch's option names."""
    stated = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "gpus-per-node": options.gpus_per_node or None,
        "cpus-per-task": options.cpus_per_task,
        "mem": options.mem,
        "time": options.time,
    }
    return [
        f"--job-name={_job_name(options, run)}",
        f"--nodes={options.nodes}",
        "--ntasks-per-node=1",
        *(f"--{name}={value}" for name, value in stated.items() if value is not None),
        f"--signal=B:USR1@{options.signal_s}",
        "--requeue" if options.requeue else "--no-requeue",
        "--open-mode=append",
        f"--output={log_dir}/%j.log",
        f"--chdir={Path.cwd()}",
        *options.sbatch,
    ]


def _job_name(options: Slurm, run: Run) -> str:
    name = options.job_name or run.name
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)


def _quoted(entry: str) -> str:
    name, _, value = entry.partition("=")
    return f"{name}={shlex.quote(value)}"


def _check_folder(run: Run) -> None:
    """Refuse a job that may be requeued but has no folder in which to find its checkpoints."""
    if run.output_dir is None:
        raise ConfigError(
            "output_dir: not given",
            rule="after a requeue the run continues from its folder, which all nodes can read",
            remedy="add --output_dir=<folder> to the options of train",
        )
    refuse_taken(run, Path(run.output_dir).expanduser())


REQUEUE = 'scontrol requeue "$SLURM_JOB_ID"'
NO_REQUEUE = "exit 85"

SCRIPT = r"""#!/bin/bash
@DIRECTIVES@
#
# Written by `kata launch --target=slurm`. @SECONDS@ s before the time limit SLURM signals this shell, the ranks save,
# and the job goes back into the queue; --resume=true continues from there.
@SETUP@

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol -o show node "$head" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
MASTER_PORT=@PORT@
export MASTER_ADDR=${MASTER_ADDR:-$head} MASTER_PORT
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
threads=$((${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}} / @RANKS@))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
export PYTHONFAULTHANDLER=1 PYTHONUNBUFFERED=1
logs=@LOGS@
export KATA_STOPPED_NOTE=$logs/$SLURM_JOB_ID.stopped
export KATA_RANK_PIDS=$logs/$SLURM_JOB_ID.pids-node
rm -f "$KATA_STOPPED_NOTE"
echo "kata: job $SLURM_JOB_ID, start ${SLURM_RESTART_COUNT:-0}: $SLURM_NNODES x @RANKS@ ranks on $SLURM_JOB_NODELIST," \
    "meeting at $MASTER_ADDR:$MASTER_PORT, OMP_NUM_THREADS=$OMP_NUM_THREADS"

ask_to_save() {
    signalled=1
    echo "kata: signalled: asking the ranks to save"
    srun --overlap --ntasks="$SLURM_NNODES" --ntasks-per-node=1 \
        bash -c 'until [ -s "$KATA_RANK_PIDS$SLURM_NODEID" ]; do sleep 1; done
            kill -USR1 $(cat "$KATA_RANK_PIDS$SLURM_NODEID")' &
}
trap ask_to_save USR1

srun --kill-on-bad-exit=1 --ntasks="$SLURM_NNODES" --ntasks-per-node=1 \
    --output="$logs/%j-node%n.log" --open-mode=append \
    bash -c 'trap "" USR1; : > "$KATA_RANK_PIDS$SLURM_NODEID"
        exec "$0" -m torch.distributed.run --node-rank="$SLURM_NODEID" \
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"' \
    @PYTHON@ @TORCHRUN@ -m kata.launch.slurm_rank_entry \
    @TRAIN@ &
step=$!
while signalled=; wait "$step"; status=$?; [ -n "$signalled" ]; do :; done

rm -f "$KATA_RANK_PIDS"*
if [ "$status" -eq 0 ] && [ -e "$KATA_STOPPED_NOTE" ]; then
    rm -f "$KATA_STOPPED_NOTE"
    echo "kata: stopped and saved"
    @AGAIN@
    exit
fi
echo "kata: ended with exit status $status"
exit "$status"
"""  # noqa: E501
