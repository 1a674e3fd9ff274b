"""Messages for options whose values are refused."""

from __future__ import annotations

from kata.errors import ConfigError


def refused_option(name: str, value: object, rule: str, remedy: str) -> ConfigError:
    """Return the error for an option with a value outside its rule."""
    return ConfigError(f"{name}={value}", rule=rule, remedy=remedy)
