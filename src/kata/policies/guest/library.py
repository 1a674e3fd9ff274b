"""Access to LeRobot: names of its policies, their config classes, and its modules by name.

Nothing here imports LeRobot at the top, because kata works without it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kata.errors import ConfigError, closest

GUEST_PREFIX = "lerobot."
"""The beginning of `policy.type` for a policy of LeRobot."""

OLDEST = (0, 6)
"""The oldest LeRobot whose policies have the interface that guests are run by."""

_PLUGINS = "lerobot_policy_"


def part(name: str) -> Any:
    """Return a module of LeRobot, such as 'policies.factory'."""
    return importlib.import_module(f"lerobot.{name}")


def draccus(name: str = "") -> Any:
    """Return the package that reads LeRobot's configs, or a module of it."""
    return importlib.import_module(f"draccus.{name}" if name else "draccus")


def is_installed() -> bool:
    """Return True if LeRobot can be imported here. It is not imported for this."""
    return importlib.util.find_spec("lerobot") is not None


def guest_names() -> list[str]:
    """Return the types of LeRobot's own policies, such as 'lerobot.act', without importing it."""
    found = importlib.util.find_spec("lerobot")
    folders = [] if found is None else found.submodule_search_locations or []
    names: list[str] = []
    for folder in folders:
        files = Path(folder).glob("policies/*/configuration_*.py")
        names += [path.stem.removeprefix("configuration_") for path in files]
    # Beside the policies lies the config of an inference method, which is no policy.
    return sorted(GUEST_PREFIX + name for name in set(names) - {"rtc"})


@functools.cache
def config_kind(name: str) -> Any:
    """Return LeRobot's config class of a policy.

    Args:
        name: LeRobot's name, such as 'act'.

    Raises:
        ConfigError: LeRobot is not installed or too old, or no policy of it or of its plugin
            packages has that name.
    """
    from importlib.metadata import version  # here and below, for it takes a while

    _require_lerobot(name)
    part("policies")
    faults = _import_plugins()
    known: Mapping[str, Any] = part("configs").PreTrainedConfig.get_known_choices()
    if name not in known:
        failed = "".join(f"; {fault}" for fault in faults)
        raise ConfigError(
            f"policy.type={GUEST_PREFIX}{name}: LeRobot has no such policy{failed}",
            rule=f"policies of LeRobot {version('lerobot')} and of installed packages "
            f"{_PLUGINS}*: {', '.join(sorted(known))}",
            remedy=_nearest(name, known),
        )
    return known[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = [f"--policy.type={GUEST_PREFIX}{each}" for each in closest(name, known)]
    return f"did you mean {' or '.join(near)}?" if near else "choose one of these"


def import_processors(name: str) -> None:
    """Import the module of a policy's processors, where it has one."""
    module = config_kind(name).__module__.replace("configuration_", "processor_")
    if importlib.util.find_spec(module) is not None:
        importlib.import_module(module)


def config_fields(kind: Any) -> dict[str, Any]:
    """Return the fields of LeRobot's config class by name."""
    return {field.name: field for field in dataclasses.fields(kind)}


def _require_lerobot(name: str) -> None:
    from importlib.metadata import PackageNotFoundError, version

    asked = f"policy.type={GUEST_PREFIX}{name}"
    rule = "policies of LeRobot are trained in an environment that has LeRobot 0.6.1"
    if not is_installed():
        python = ".".join(map(str, sys.version_info[:2]))
        older = f"; this is {python}" if sys.version_info < (3, 12) else ""
        raise ConfigError(
            f"{asked}: LeRobot is not installed",
            rule=rule,
            remedy=f"pip install 'kata[lerobot]' with Python 3.12 or newer{older}; LeRobot's own "
            "extras bring what single policies need, as in pip install 'lerobot[smolvla]'"
            + _own_policy(name),
        )
    try:
        found = version("lerobot")
    except PackageNotFoundError:
        return  # a checkout on Python's path
    numbers = tuple(int(each) for each in found.split(".")[:2] if each.isdigit())
    if numbers < OLDEST:
        raise ConfigError(
            f"{asked}: LeRobot is {found}", rule=rule, remedy="pip install 'lerobot==0.6.1'"
        )


def _own_policy(name: str) -> str:
    from kata.policies import POLICIES  # here, for it finds this package by its name

    return f"; or train kata's own: --policy.type={name}" if name in POLICIES else ""


@functools.cache
def _import_plugins() -> tuple[str, ...]:
    """Import the installed plugin packages, which add their policies to LeRobot's.

    Returns:
        A sentence for each package that cannot be imported.
    """
    from importlib.metadata import distributions

    faults: list[str] = []
    for found in distributions():
        package = str(found.metadata["Name"]).replace("-", "_")
        if not package.startswith(_PLUGINS):
            continue
        try:
            importlib.import_module(package)
        except Exception as error:  # noqa: BLE001 - a package may raise anything as it is imported
            faults.append(f"{package} cannot be imported ({type(error).__name__}: {error})")
    return tuple(faults)
