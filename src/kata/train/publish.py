"""Uploading the final policy. The Hub may be down: the weights are on the disk, and the run has succeeded."""

from __future__ import annotations

from pathlib import Path

from kata.run import Run


def upload(run: Run, pretrained: Path) -> str:
    """Upload a `pretrained_model` folder to `policy.repo_id` and return a sentence on how it went."""
    from huggingface_hub import HfApi

    policy = run.policy
    assert policy.repo_id is not None
    card = pretrained / "README.md"
    card.write_text(_card(run), encoding="utf-8")
    try:
        api = HfApi()
        api.create_repo(policy.repo_id, private=policy.private, exist_ok=True)
        found = api.upload_folder(repo_id=policy.repo_id, folder_path=pretrained, commit_message="Upload policy")
    except Exception as error:  # noqa: BLE001 - whatever the Hub's client raises, the run itself has succeeded
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return (
            f"not uploaded to {policy.repo_id}: {reason}. The policy is in {pretrained}; upload it later with "
            f"`hf upload {policy.repo_id} {pretrained}`"
        )
    return f"uploaded to {found.repo_url}"


def _card(run: Run) -> str:
    """The model card's head as the Hub reads it, and one sentence."""
    tags = ["robotics", "lerobot", run.policy.type, *(run.policy.tags or [])]
    lines = [
        "---",
        f"datasets: {run.dataset.repo_id}",
        "library_name: lerobot",
        f"license: {run.policy.license or 'apache-2.0'}",
        "pipeline_tag: robotics",
        "tags:",
        *(f"- {tag}" for tag in dict.fromkeys(tags)),
        "---",
        "",
        f"# {run.name}",
        "",
        f"A {run.policy.type} policy trained with kata on {run.dataset.repo_id}, {run.steps} steps of "
        f"{run.effective_batch} samples. LeRobot loads it.",
        "",
    ]
    return "\n".join(lines)
