"""The options are frozen: users' scripts depend on them. A new one is added to flags.txt in the same change.

Write the list anew with: python tests/house/test_flags.py
"""

from pathlib import Path

from kata.config import encode, field_names
from kata.optim.config import OptimizerConfig, SchedulerConfig
from kata.policies import POLICIES, config_class
from kata.run import Run

LIST = Path(__file__).with_name("flags.txt")


def all_flags() -> str:
    classes = [(Run, "")]
    classes += [(config_class(name), f"policy[{name}].") for name in POLICIES]
    classes += [(c, f"optimizer[{n}].") for n, c in OptimizerConfig.get_known_choices().items()]
    classes += [(c, f"scheduler[{n}].") for n, c in SchedulerConfig.get_known_choices().items()]
    lines = [
        f"{name}: {kind} = {encode(default)}"
        for cls, prefix in classes
        for name, kind, default in field_names(cls, prefix)
    ]
    return "\n".join(lines) + "\n"


def test_names_types_and_defaults_of_all_flags_are_those_on_record():
    assert all_flags() == LIST.read_text()


if __name__ == "__main__":
    LIST.write_text(all_flags())
