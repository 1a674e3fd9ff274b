"""The command line: a table of verbs. A verb's modules are imported when it runs, so help is quick.

Exit status: 0 for done; 1 if `checkpoint verify` found damage or `doctor` a fault; 2 for an error
that the user can correct (one message, no traceback); 85 for a run that was asked to stop and
saved; 130 for an interruption. `launch` exits with the status of the rank that failed.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kata import __version__, log
from kata.config.verb import Verb, run_verb
from kata.errors import KataError, refused_by_system, with_cause

if TYPE_CHECKING:
    from kata.config.completion import CompletionOptions

_DATA = "kata.data.commands"
_CHECKPOINT = "kata.train.checkpoint"


def _data_verb(name: str, says: str, usage: str, options: str = "") -> Verb:
    module, _, function = name.partition(":")
    return Verb(
        says=says,
        usage=usage,
        work=f"{_DATA}.{module}:{function or 'main'}",
        options=f"{_DATA}.options:{options or module.capitalize()}Options",
        word="dataset.root",
        footer=(
            "The options of dataset have short forms: --root, --repo_id, --episodes and so on.",
        ),
    )


def _checkpoint_verb(function: str, says: str, usage: str, options: str) -> Verb:
    return Verb(
        says=says,
        usage=usage,
        work=f"{_CHECKPOINT}.command:{function}",
        options=f"{_CHECKPOINT}.options:{options}",
        word="path",
    )


def _job_verb(function: str, says: str, options: str, usage: str = "<job> [options]") -> Verb:
    return Verb(
        says=says,
        usage=usage,
        work=f"kata.launch.job_control:{function}",
        options=f"kata.launch.options:{options}",
        word="job" if "<job>" in usage else "",
    )


TRAIN = Verb(
    says="train a policy on a LeRobot dataset",
    usage="--policy.type=<name> --dataset.repo_id=<user>/<name> --output_dir=<folder> [options]",
    work="kata.cli:train_verb",
    options="kata.run.config:Run",
    is_raw=True,
    footer=(
        "`kata train --policy.type=act --help` lists the options of a policy, "
        "--optimizer.type=adamw and "
        "--scheduler.type=diffuser those of an optimizer and a schedule.",
    ),
)

EVAL = Verb(
    says="evaluate a policy in an environment and report its success rate",
    usage="--policy.path=<checkpoint or Hub name> --env.type=<name> [options]",
    work="kata.eval.command:main",
    options="kata.eval.options:EvalRun",
    is_raw=True,
)

RL = Verb(
    says="learn by acting: SAC with demonstrations and human takeovers",
    usage="<verb> [options]",
    verbs={
        "train": Verb(
            says="act and learn in one process",
            usage="--env.type=<name> --output_dir=<folder> [--dataset.root=<demonstrations>] "
            "[options]",
            work="kata.rl.command:main",
            options="kata.rl.options:RlRun",
            is_raw=True,
        ),
        "learn": Verb(
            says="learn from actors in other processes and on other machines",
            usage="--env.type=<name> --output_dir=<folder> [options]",
            work="kata.rl.network.command:learn",
            options="kata.rl.network.options:LearnRun",
            is_raw=True,
            footer=("All options of `kata rl train` are taken too, and mean the same.",),
        ),
        "act": Verb(
            says="act for `kata rl learn`",
            usage="--env.type=<name> --rl.learner=http://<address>:<port> --output_dir=<folder> "
            "[options]",
            work="kata.rl.network.command:act",
            options="kata.rl.network.options:ActRun",
            is_raw=True,
        ),
        "classify": Verb(
            says="train a reward classifier on recordings",
            usage="--dataset.root=<recordings> --output_dir=<folder> [options]",
            work="kata.rl.classifier.command:classify",
            options="kata.rl.classifier.options:ClassifyRun",
        ),
        "replay": Verb(
            says="learn a run again from its journal, and compare weights; status 1 if they differ",
            usage="<run>",
            work="kata.rl.command:learn_again_command",
            options="kata.rl.options:ReplayRunOptions",
            word="run",
        ),
        "export": Verb(
            says="write a run's journal as a LeRobot dataset",
            usage="<run> --output_dir=<dataset> [options]",
            work="kata.rl.command:export_command",
            options="kata.rl.options:ExportRunOptions",
            word="run",
        ),
    },
)

CHECKPOINT = Verb(
    says="list, verify, prune, export, convert and push checkpoints",
    usage="<verb> <path> [options]",
    verbs={
        "list": _checkpoint_verb(
            "list_checkpoints",
            "list step, size, age and state of each checkpoint, and the targets of last and best",
            "<run>",
            "PathOptions",
        ),
        "verify": _checkpoint_verb(
            "verify",
            "read every file of a run's checkpoints, or of one, and compare its hash; status 1 "
            "for damage",
            "<path>",
            "PathOptions",
        ),
        "prune": _checkpoint_verb(
            "prune_command",
            "remove checkpoints that no rule keeps; last, best and the newest good one always stay",
            "<run> --keep_last=N [options]",
            "PruneOptions",
        ),
        "export": _checkpoint_verb(
            "export",
            "copy the files that inference needs",
            "<path> --out=<folder>",
            "ExportOptions",
        ),
        "convert": _checkpoint_verb(
            "convert_state",
            "write the state as LeRobot's files, in shards, or as both",
            "<path> --to=safetensors [--out=<folder>]",
            "ConversionOptions",
        ),
        "push": _checkpoint_verb(
            "upload_command",
            "upload the files that inference needs to the Hub; files that are there are skipped",
            "<path> --repo_id=<user>/<name>",
            "PushOptions",
        ),
    },
)

DATA = Verb(
    says="look at, check, edit and record datasets",
    usage="<verb> <folder> [options]",
    verbs={
        "info": _data_verb(
            "info",
            "describe a dataset, and what a training run would see of it",
            "<folder> [options]",
        ),
        "stats": _data_verb(
            "stats",
            "compute the statistics and compare them with the stored ones",
            "<folder> [options]",
        ),
        "check": _data_verb(
            "check",
            "find damaged files, wrong counts, gaps in time, NaN and the like",
            "<folder> [options]",
        ),
        "index": _data_verb(
            "index",
            "index all videos, so that no run in a store has to open them first",
            "<folder or address> [--upload]",
        ),
        "repair": _data_verb(
            "repair",
            "write a corrected copy, as far as a fault has one mechanical answer",
            "<folder> --out=<folder> [options]",
        ),
        "view": _data_verb(
            "view",
            "draw one episode: frames of all cameras, curves of all values",
            "<folder> --episode=<number> --out=<file>.png [options]",
        ),
        "convert": _data_verb(
            "edit:run_convert",
            "convert a v2.0 or v2.1 dataset to v3.0, frames bit for bit",
            "<folder> --out=<folder> [options]",
            "Convert",
        ),
        "merge": Verb(
            says="merge datasets into one",
            usage="<folder> <folder> ... --out=<folder> [options]",
            work=f"{_DATA}.edit:run_merge",
            options=f"{_DATA}.options:MergeOptions",
            word="roots",
        ),
        "split": _data_verb(
            "edit:run_split",
            "split a dataset by episodes: chosen, excluded, in shares, by task",
            "<folder> --out=<folder> [options]",
            "Split",
        ),
        "transcode": _data_verb(
            "edit:run_transcode",
            "encode the cameras again: codec, keyframe distance, quality, size",
            "<folder> --out=<folder> [options]",
            "Transcode",
        ),
        "demo": Verb(
            says="record demonstrations of the built-in task as a LeRobot dataset",
            usage="<folder> [options]",
            work="kata.eval.record.recording:demo",
            options="kata.eval.options:DemoOptions",
            word="root",
        ),
        "replay": Verb(
            says="replay joint trajectories in the ALOHA simulation as a dataset",
            usage="<folder> --trajectories=<file>.npz [options]",
            work="kata.eval.record.recording:replay_command",
            options="kata.eval.options:ReplayOptions",
            word="root",
        ),
    },
)

BENCH = Verb(
    says="measure reading, streaming, scaling and training steps",
    usage="<verb> [options]",
    verbs={
        "data": Verb(
            says="measure reading, against the decode floor",
            usage="<dataset, or folder of datasets> [options]",
            work="kata.bench.command:data",
            options="kata.bench.options:BenchRun",
            word="root",
        ),
        "stream": Verb(
            says="measure reading from a store or a disk, without a model",
            usage="<folder or address> [--mode=single|sarm] [--source=<label>] [options]",
            work="kata.bench.stream.command:stream",
            options="kata.bench.stream.options:StreamBench",
            word="dataset.root",
            footer=(
                "torchrun and srun start it on several nodes; figures are summed per node.",
                "The options of dataset have short forms: --root, --repo_id, --episodes and so on.",
            ),
        ),
        "scale": Verb(
            says="measure how training scales with ranks, and plan larger numbers",
            usage="[options] [-- <options of kata train>]",
            work="kata.bench.scale.command:scale",
            options="kata.bench.scale.options:ScaleRun",
            has_rest=True,
            footer=("Without options of kata train: a small ACT on the built-in task.",),
        ),
        "step": Verb(
            says="count kernels, saved bytes and operations of a training step, without a GPU",
            usage="[options]",
            work="kata.bench.step.command:step",
            options="kata.bench.step.options:StepBench",
        ),
    },
)

LAUNCH = Verb(
    says="start a run on several GPUs, a SLURM cluster or as a Hugging Face Job",
    usage="[--target=local|slurm|hf:<flavor>] [options] -- train <options of kata train>",
    work="kata.launch.command:launch",
    options="kata.launch.options:target_classes",
    variant="target",
    has_rest=True,
    verbs={
        "status": _job_verb("show_status", "show the state of a job", "JobOptions"),
        "logs": _job_verb("show_logs", "print the output of a job", "LogOptions"),
        "cancel": _job_verb("cancel", "cancel a job", "JobOptions"),
        "flavors": _job_verb(
            "show_flavors", "list the machines of Hugging Face Jobs", "FlavorOptions", ""
        ),
    },
    footer=(
        "`kata launch --target=slurm --help` and `--target=hf:a10g-large --help` list the options "
        "of those "
        "targets; kata launch status|logs|cancel <job> and kata launch flavors look after jobs. "
        "Exit status: "
        "that of the rank that failed; 85 where the run was asked to stop and saved; 0 when it is "
        "done.",
    ),
)

PLAN = Verb(
    says="say what a run will need: memory, time, price, disk",
    usage="--gpu=<name> [options] <options of kata train>",
    work="kata.launch.planning.command:main",
    options="kata.launch.planning.options:PlanOptions",
    is_raw=True,
    footer=(
        "All options of `kata train` are taken too, and mean the same. No GPU is needed, no "
        "weights and no network.",
    ),
)

KATA = Verb(
    says="kata trains robot policies: LeRobot datasets in, LeRobot checkpoints out.",
    usage="<verb> [options]",
    verbs={
        "train": TRAIN,
        "plan": PLAN,
        "eval": EVAL,
        "rl": RL,
        "checkpoint": CHECKPOINT,
        "data": DATA,
        "bench": BENCH,
        "launch": LAUNCH,
        "doctor": Verb(
            says="check this machine: versions, GPUs, codecs, disk, and faults",
            usage="[options]",
            work="kata.launch.doctor.command:main",
            options="kata.launch.options:DoctorOptions",
            footer=("Exit status: 0 nothing is wrong, 1 something is.",),
        ),
        "quickstart": Verb(
            says="record the built-in task, train a small ACT on it, evaluate it, write the report",
            work="kata.recipes:quickstart",
            options="kata.recipes:QuickstartOptions",
        ),
        "completion": Verb(
            says="print a script that completes verbs and options in a shell",
            usage="bash|zsh|fish",
            work="kata.cli:complete_words",
            options="kata.config.completion:CompletionOptions",
            word="shell",
            footer=("For example: source <(kata completion bash)",),
        ),
    },
    footer=(
        "`kata <verb> --help` shows the options that people use, --help=all all of them, "
        "--help=<word> those "
        "that have to do with a word.",
        "`kata --version` prints the version; --debug, with any verb, shows the traceback of an "
        "error.",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    log.configure()
    log.show_any_letter()
    # torch.distributed.launch puts its rank in front of the verb; kata reads the environment's.
    args = [arg for arg in args if not arg.startswith("--local-rank=")]
    if args == ["--version"]:
        print(__version__)
        return 0
    return answer(KATA, args, "kata")


def answer(verb: Verb, args: Sequence[str], path: str) -> int:
    """Run a verb and return the exit status; an error that the user can correct is one message.

    Args:
        verb: The verb that `path` names.
        args: What stands behind it; --debug shows the traceback of an error.
        path: The command so far, such as 'kata'.
    """
    debug = "--debug" in args
    try:
        return run_verb(verb, [arg for arg in args if arg != "--debug"], path)
    except KataError as error:
        if debug:
            raise
        return _refused(with_cause(error))
    except OSError as error:
        found = refused_by_system(error)
        if debug or found is None:
            raise
        return _refused(found)
    except KeyboardInterrupt:
        print("kata: interrupted", file=sys.stderr)
        return 130


def _refused(error: KataError) -> int:
    print(log.redacted(f"kata: {error}"), file=sys.stderr)
    return 2


def train_verb(args: Sequence[str]) -> int:
    """Train with these arguments, on this rank."""
    from kata.config import parse_flags
    from kata.dist.world import read_world
    from kata.run import memory_to_fit, resolve_run
    from kata.run.data_checks import check_local_data
    from kata.run.device import check_device
    from kata.run.outputs import check_outputs

    world = read_world(os.environ)
    if parse_flags(args).get("batch_size") == "auto":
        from kata.launch.planning.auto_batch import with_batch_size

        args = with_batch_size(args, world.size)
    if memory_to_fit(args) is not None:
        from kata.launch.planning.auto_batch import fit_here

        args = fit_here(args, world.size)
    run, notes = resolve_run(args, world.size, os.environ)
    if world.size == 1:  # several ranks look when they have met, and the fault of one ends all
        check_device(run)
        check_local_data(run)
        check_outputs(run)
    checks = []
    if run.env is not None:
        from kata.eval.env_check import acceptance
        from kata.eval.envs.registry import register_env, resolve_env

        spec = resolve_env(run.env)
        register_env(spec)
        checks = [acceptance(spec, run.eval.inference_delay)]
    from kata.train.command import train_and_tell

    return train_and_tell(run, notes, shlex.join(["kata", "train", *args]), *checks)


def complete_words(options: CompletionOptions) -> int:
    """Print a shell's script, or the words that may follow at the end of a line."""
    from kata.config.completion import SCRIPTS, completions

    if options.shell == "words":
        print("\n".join(completions(KATA, options.line)))
    else:
        print(SCRIPTS[options.shell], end="")
    return 0
