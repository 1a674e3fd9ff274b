"""The verbs of `kata data`: one table; the module of a verb is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from kata.errors import ConfigError, did_you_mean


class Verb(NamedTuple):
    """One verb: `target` is 'module:function', a function from arguments to an exit status; `says` is one line."""

    target: str
    says: str


_EDITING = "kata.data.commands.edit"

VERBS = {
    "info": Verb(
        "kata.data.commands.info:main",
        "what a dataset holds, and what a training run would see of it",
    ),
    "stats": Verb(
        "kata.data.commands.stats:main",
        "compute the statistics anew and compare them with the stored ones",
    ),
    "check": Verb(
        "kata.data.commands.check:main",
        "find damaged files, wrong counts, gaps in time, NaN and the like",
    ),
    "view": Verb(
        "kata.data.commands.view:main",
        "a picture of one episode: frames of all cameras, curves of all values",
    ),
    "convert": Verb(
        f"{_EDITING}:run_convert", "make a v3.0 dataset of a v2.0 or v2.1 one, frames bit for bit"
    ),
    "merge": Verb(f"{_EDITING}:run_merge", "make one dataset of several"),
    "split": Verb(
        f"{_EDITING}:run_split",
        "make datasets of some episodes: chosen, left out, in shares, by task",
    ),
    "transcode": Verb(
        f"{_EDITING}:run_transcode", "encode the cameras anew: codec, keyframes, quality, size"
    ),
}
"""The verbs of this package, in the order in which --help lists them."""


def run_verb(args: Sequence[str], verbs: Mapping[str, Verb]) -> int:
    """Run the verb that `args` begin with and return its exit status; --help lists them all.

    Raises: ConfigError for an unknown verb, with the nearest.
    """
    if not args or args[0] in ("-h", "--help", "help"):
        width = max(map(len, verbs))
        lines = [f"  {name:<{width}}  {verb.says}\n" for name, verb in verbs.items()]
        print(
            "usage: kata data <verb> [options]; kata data <verb> --help lists the options\n\n"
            + "".join(lines),
            end="",
        )
        return 0
    name, *rest = args
    if name not in verbs:
        raise ConfigError(
            f"data '{name}': no such verb",
            rule=f"verbs: {', '.join(verbs)}",
            remedy=did_you_mean(name, verbs),
        )
    module, function = verbs[name].target.split(":")
    return import_module(module).__dict__[function](rest)
