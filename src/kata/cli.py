"""The command line. Each verb's module is imported when the verb runs, so that `kata --help` is instant.

Exit status: 0 done, 1 `checkpoint verify` found damage or `doctor` a fault, 2 something the user can correct (one
message, no traceback), 85 asked to stop and saved, 130 interrupted; `launch` leaves with the status of the rank that
failed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from kata import __version__, log
from kata.errors import ConfigError, KataError, did_you_mean

HELP = """\
kata trains robot policies: LeRobot datasets in, LeRobot checkpoints out.

usage: kata <verb> [options]

  kata train --policy.type=act --dataset.repo_id=<user>/<name> --output_dir=<folder>
                        train a policy; `kata train --help` lists every option
  kata eval --policy.path=<checkpoint> --env.type=kata
                        let a policy act, and say how often it succeeds; `kata eval --help`
  kata checkpoint list|verify|prune|export|push|convert <run folder>
                        look after what a run saved; `kata checkpoint --help`
  kata data <verb> --root=<folder>
                        look at, check and make datasets; `kata data --help` lists the verbs
  kata bench data --root=<dataset or folder of datasets> [--peer]
                        measure reading: against the decode floor, and against LeRobot; `kata bench data --help`
  kata bench scale [--ranks=1,2] [-- <options of train>]
                        measure what more ranks bring and cost; `kata bench scale --help`
  kata launch --gpus=4 -- train …
                        train on several GPUs; `kata launch --help`
  kata doctor           look at this machine: versions, GPUs, codecs, disk, and what is wrong with a remedy each
  kata quickstart       record the built-in task, train a small ACT on it, evaluate it, write the report

  kata --version        print the version
  --debug               with any verb: show the traceback of an error
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    log.configure()
    debug = "--debug" in args
    # torch.distributed.launch puts its rank in front of the verb, and into the environment, where it is read.
    args = [arg for arg in args if arg != "--debug" and not arg.startswith("--local-rank=")]
    try:
        return _dispatch(args)
    except KataError as error:
        if debug:
            raise
        print(log.redacted(f"kata: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kata: interrupted", file=sys.stderr)
        return 130


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if args[0] == "--version":
        print(__version__)
        return 0
    verb, rest = args[0], args[1:]
    if verb not in VERBS:
        raise ConfigError(
            f"'{verb}': no such verb",
            rule=f"verbs: {', '.join(VERBS)}",
            remedy=did_you_mean(verb, VERBS),
        )
    return VERBS[verb](rest)


def _train(args: list[str]) -> int:
    if any(arg in ("-h", "--help") for arg in args):
        print(_train_help(), end="")
        return 0
    import os

    from kata.dist.world import read_world
    from kata.run import resolve_run

    run, notes = resolve_run(args, read_world(os.environ).size, os.environ)
    if run.env is not None:
        from kata.eval.envs.registry import register, resolve_env

        register(resolve_env(run.env))
    from kata.train.command import train_and_tell

    return train_and_tell(run, notes, shlex.join(["kata", "train", *args]))


def _train_help() -> str:
    from kata.config import field_names
    from kata.optim.config import OptimizerConfig, SchedulerConfig
    from kata.policies import config_class, policy_types
    from kata.run import Run

    lines = [
        "usage: kata train --policy.type=<name> --dataset.repo_id=<user>/<name> --name=value ...\n",
        "\nAlso name=value, and --config=<file> with any of these in YAML or JSON; flags win over the file.\n",
        f"policy.type: {', '.join(policy_types())}; or --policy.path=<folder or Hub name> to continue from a policy.\n",
    ]
    groups: list[tuple[str, type, str]] = [("options", Run, "")]
    groups += [(f"policy.type={name}", config_class(name), "policy.") for name in policy_types()]
    groups += [
        (f"optimizer.type={n}", c, "optimizer.")
        for n, c in OptimizerConfig.get_known_choices().items()
    ]
    groups += [
        (f"scheduler.type={n}", c, "scheduler.")
        for n, c in SchedulerConfig.get_known_choices().items()
    ]
    for title, cls, prefix in groups:
        lines.append(f"\n{title}\n")
        lines += [
            f"  --{name:<44} {kind} = {_shown(default)}\n"
            for name, kind, default in field_names(cls, prefix)
        ]
    return "".join(lines)


def _shown(default: object) -> str:
    """A default as it would be written in a flag."""
    import json

    from kata.config import encode

    plain = encode(default)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _data(args: list[str]) -> int:
    from kata.data.commands import VERBS as TOOLS
    from kata.data.commands import Verb, run_verb

    recorded = {
        "demo": Verb(
            "kata.eval.record.recording:demo",
            "record demonstrations of the built-in task as a LeRobot dataset",
        ),
        "replay": Verb(
            "kata.eval.record.recording:replay",
            "replay joint trajectories in the ALOHA simulation as a dataset",
        ),
    }
    return run_verb(args, {**TOOLS, **recorded})


def _quickstart(args: list[str]) -> int:
    known = {"root": "data/reach", "output_dir": "outputs/quickstart", "episodes": 50, "steps": 250}
    options = _options(args, known)
    from kata.recipes import quickstart

    return quickstart(
        root=str(options["root"]),
        output_dir=str(options["output_dir"]),
        episodes=_whole("episodes", options["episodes"]),
        steps=_whole("steps", options["steps"]),
    )


def _options(args: list[str], known: Mapping[str, object]) -> dict[str, object]:
    """Flags of a small verb over their defaults; an unknown one is refused with the nearest."""
    from kata.config import parse_flags

    given = parse_flags(args)
    for name in given:
        if name not in known:
            raise ConfigError(
                f"{name}: no such option",
                rule=f"options: {', '.join(known)}",
                remedy=did_you_mean(name, known),
            )
    return {**known, **given}


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(
            f"{name}={value}", rule="a whole number", remedy=f"for example --{name}=50"
        )
    return value


def _eval(args: list[str]) -> int:
    from kata.eval.command import main as evaluate

    return evaluate(args)


def _checkpoint(args: list[str]) -> int:
    from kata.train.checkpoint.command import main as look_after

    return look_after(args)


def _bench(args: list[str]) -> int:
    from kata.bench.command import main as bench

    return bench(args)


def _launch(args: list[str]) -> int:
    from kata.launch.command import main as launch

    return launch(args)


def _doctor(args: list[str]) -> int:
    from kata.launch.doctor.command import main as doctor

    return doctor(args)


VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "eval": _eval,
    "checkpoint": _checkpoint,
    "data": _data,
    "bench": _bench,
    "launch": _launch,
    "doctor": _doctor,
    "quickstart": _quickstart,
}
