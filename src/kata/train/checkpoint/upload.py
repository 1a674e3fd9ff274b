"""Uploading a policy.

The Hub may be down: the weights are on the disk, and the run has succeeded.
"""

from __future__ import annotations

from pathlib import Path

from kata.config import decode, read_config
from kata.errors import CheckpointError, ConfigError
from kata.log import redacted
from kata.run import Run
from kata.run.lerobot_options import drop_foreign


def upload(run: Run, pretrained: Path) -> str:
    """Upload a `pretrained_model` folder to `policy.repo_id` and return a sentence on how it
    went.
    """
    assert run.policy.repo_id is not None
    try:
        return _send(pretrained, run.policy.repo_id, run.policy.private, run)
    except CheckpointError as error:
        return f"{error.what}. {error.remedy}"


def push(pretrained: Path, repo_id: str, *, private: bool | None = None) -> str:
    """Upload a `pretrained_model` folder; files that the repository has already are not sent again.

    Raises CheckpointError in one sentence where that fails; nothing on this machine is lost.
    """
    try:
        run = decode(Run, drop_foreign(read_config(pretrained)))
    except ConfigError:  # another trainer's options: the files go as they are, without a card
        run = None
    return _send(pretrained, repo_id, private, run)


def _send(pretrained: Path, repo_id: str, private: bool | None, run: Run | None) -> str:
    from huggingface_hub import HfApi

    try:
        if run is not None:
            (pretrained / "README.md").write_text(_card(run), encoding="utf-8")
        api = HfApi()
        api.create_repo(repo_id, private=private, exist_ok=True)
        found = api.upload_folder(
            repo_id=repo_id, folder_path=pretrained, commit_message="Upload policy"
        )
    except (
        Exception
    ) as error:  # whatever the Hub's client raises, what it should have sent is still here
        reason = redacted(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise CheckpointError(
            f"not uploaded to {repo_id}: {reason}",
            rule="the Hub can be reached, and its token (`hf auth login`) may write there",
            remedy=f"The policy is in {pretrained}; send it, or what is still missing of it, with "
            f"`kata checkpoint push {pretrained} --repo_id={repo_id}`",
        ) from error
    return f"uploaded to {found.repo_url}"


def _card(run: Run) -> str:
    """The model card's head as the Hub reads it, and one sentence."""
    names = run.dataset.repo_ids
    tags = ["robotics", "lerobot", run.policy.type, *(run.policy.tags or [])]
    lines = [
        "---",
        f"datasets: {names[0] if len(names) == 1 else names}",
        "library_name: lerobot",
        f"license: {run.policy.license or 'apache-2.0'}",
        "pipeline_tag: robotics",
        "tags:",
        *(f"- {tag}" for tag in dict.fromkeys(tags)),
        "---",
        "",
        f"# {run.name}",
        "",
        f"A {run.policy.type} policy trained with kata on {', '.join(names)}, {run.steps} steps of "
        f"{run.effective_batch} samples. LeRobot loads it.",
        "",
    ]
    return "\n".join(lines)
