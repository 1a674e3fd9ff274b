"""`kata launch`: from its arguments to the target that runs them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from kata.config import decode, encode, field_names, parse_flags
from kata.launch.options import Jobs, Local, Slurm, target_class

USAGE = """\
usage: kata launch [--target=local] [--gpus=N] [options] -- train <options of kata train>
       kata launch --target=slurm --nodes=2 --gpus-per-node=4 --time=12:00:00 [options] -- train …
       kata launch --target=hf:a10g-large --image=<user>/kata --timeout=2h [options] -- train …
       kata launch status|logs|cancel <job>
       kata launch flavors

Exit status: that of the rank that failed; 85 where the run was asked to stop and saved; 0 when it is done.
"""


def main(args: Sequence[str]) -> int:
    """Launch a run, or look after one, and return the exit status."""
    if args and args[0] in LOOKS:
        from kata.launch.job_control import look

        return look(args[0], args[1:])
    own, run_args = split(args)
    if not args or any(arg in ("-h", "--help") for arg in own):
        print(help_text(), end="")
        return 0
    flags = read_flags(own)
    target = str(flags.pop("target", "local"))
    cls = target_class(target)
    options = decode(cls, {name: _shaped(cls, name, value) for name, value in flags.items()})
    if isinstance(options, Slurm):
        from kata.launch.slurm import launch_slurm

        return launch_slurm(options, run_args)
    if isinstance(options, Jobs):
        from kata.launch.hf_jobs import launch_job

        return launch_job(options, target.removeprefix("hf:"), run_args)
    from kata.launch.local import launch_local

    return launch_local(options, run_args)


LOOKS = ("status", "logs", "cancel", "flavors")


def split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first '--'."""
    where = list(args).index("--") if "--" in args else len(args)
    return list(args[:where]), list(args[where + 1 :])


def read_flags(own: Sequence[str]) -> dict[str, Any]:
    """The launcher's options by name. Dashes in names are underscores, as SLURM's users write them.

    A time limit stays text: YAML reads 12:00:00 as a number of seconds, which SLURM would take for minutes.
    """
    plain: list[str] = []
    for token in own:
        before = plain[-1] if plain else ""
        text = re.fullmatch(r"(--time=)(\d.*)", token) or (
            before == "--time" and re.fullmatch(r"()(\d.*)", token)
        )
        plain.append(f'{text[1]}"{text[2]}"' if text else token)
    return {name.replace("-", "_"): value for name, value in parse_flags(plain).items()}


def _shaped(cls: type, name: str, value: Any) -> Any:
    """One word for an option that takes a list of words is a list of one."""
    listed = any(
        field.name == name and str(field.type) == "list[str]" for field in dataclasses.fields(cls)
    )
    return [value] if listed and isinstance(value, str) else value


def help_text() -> str:
    """The usage, and all options with types and defaults."""
    lines = [USAGE]
    for title, cls in (
        ("--target=local", Local),
        ("--target=slurm", Slurm),
        ("--target=hf:<flavor>", Jobs),
    ):
        lines.append(f"\n{title}\n")
        lines += [
            f"  --{name:<18} {kind} = {encode(default)}\n"
            for name, kind, default in field_names(cls)
        ]
    return "".join(lines)
