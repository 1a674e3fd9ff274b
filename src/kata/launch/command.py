"""`kata launch`: from its arguments to the target that runs them."""

from __future__ import annotations

from collections.abc import Sequence

from kata.config import decode, encode, field_names, parse_flags
from kata.errors import ConfigError, did_you_mean
from kata.launch.local import launch_local
from kata.launch.options import Local, target_class

USAGE = """\
usage: kata launch [--target=local] [--gpus=N] [options] -- train <options of kata train>

Exit status: that of the rank that failed; 85 where the run was asked to stop and saved; 0 when it is done.
"""


def main(args: Sequence[str]) -> int:
    """Launch a run, or look after one, and return the exit status."""
    own, run_args = split(args)
    if not args or any(arg in ("-h", "--help") for arg in own):
        print(help_text(), end="")
        return 0
    flags = {name.replace("-", "_"): value for name, value in parse_flags(own).items()}
    target = str(flags.pop("target", "local"))
    cls = target_class(target)
    check_train(run_args)
    return launch_local(decode(cls, flags), run_args)


def split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first '--'."""
    where = list(args).index("--") if "--" in args else len(args)
    return list(args[:where]), list(args[where + 1 :])


def check_train(run_args: Sequence[str]) -> None:
    """ConfigError unless these are arguments of `kata train` that it would take."""
    if not run_args or run_args[0] != "train":
        given = run_args[0] if run_args else "nothing"
        remedy = did_you_mean(given, ["train"]) if run_args else "for example kata launch --gpus=2 -- train --config=…"
        raise ConfigError(f"'{given}' after --", rule="what is launched is `train` with its options", remedy=remedy)
    from kata.run import resolve_run

    resolve_run(run_args[1:])


def help_text() -> str:
    """The usage, and all options with types and defaults."""
    lines = [USAGE]
    for title, cls in (("--target=local", Local),):
        lines.append(f"\n{title}\n")
        lines += [f"  --{name:<18} {kind} = {encode(default)}\n" for name, kind, default in field_names(cls)]
    return "".join(lines)
