"""A stand-in for huggingface.co: the parts of Hub and Jobs that the client library talks to, on a
local port.

Jobs really run, as processes of this machine with the environment that was submitted, and are
killed when their time is over. Repositories are folders in memory, a commit replaces their files in
one go.
"""

import base64
import datetime
import hashlib
import json
import os
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "x" * 30
HARDWARE = [
    ("cpu-basic", None, 0.01),
    ("a10g-largex2", ("A10G", 2, 24), 3.0),
    ("b300x16", ("B300", 16, 288), 99.0),
]
"""One machine that nobody knew of when the table was written."""


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


@dataclass
class Job:
    id: str
    spec: dict
    began_s: float = 0.0
    ran_s: float = 0.0
    stage: str = "SCHEDULING"
    message: str | None = None
    events: list[dict] = field(default_factory=list)
    process: subprocess.Popen | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def shown(self) -> dict:
        spec = self.spec
        ran_s = self.ran_s or (time.monotonic() - self.began_s if self.began_s else None)
        return {
            "id": self.id,
            "createdAt": now(),
            "owner": {"id": "1", "name": "me", "type": "user"},
            "dockerImage": spec.get("dockerImage"),
            "command": spec["command"],
            "flavor": spec["flavor"],
            "environment": spec["environment"],
            "status": {"stage": self.stage, "message": self.message},
            "durations": {"schedulingSecs": 1, "runningSecs": ran_s, "totalSecs": 1},
        }


class Service:
    """Use as a context manager; `environment` makes the client library talk to it."""

    def __init__(self, folder, base_env):
        self.folder, self.base_env = folder, base_env
        self.repos: dict[str, dict[str, bytes]] = {}
        self.commits: dict[str, list[str]] = {}
        self.jobs: dict[str, Job] = {}
        self.refuses: set[str] = set()  # paths that are answered with 503
        self.threads: list[threading.Thread] = []
        service = self

        class Handler(_Handler):
            pass

        Handler.service = service
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.environment = {
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(folder),
        }

    def __enter__(self):
        threading.Thread(
            target=self.server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}
        ).start()
        return self

    def __exit__(self, *error):
        for job in self.jobs.values():
            if job.process is not None and job.process.poll() is None:
                os.killpg(job.process.pid, 9)
        for thread in self.threads:
            thread.join()
        self.server.shutdown()
        self.server.server_close()

    def start(self, spec: dict) -> Job:
        job = Job(f"{len(self.jobs) + 1:024x}", spec)
        self.jobs[job.id] = job
        self.threads.append(threading.Thread(target=self._run, args=(job,), daemon=True))
        self.threads[-1].start()
        return job

    def _run(self, job: Job) -> None:
        where = self.folder / job.id
        where.mkdir()
        env = {
            **self.base_env,
            **job.spec["environment"],
            **job.spec.get("secrets", {}),
            "JOB_ID": job.id,
        }
        env |= {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(where / "home")}
        # A job's own disk, seen as /tmp of its container.
        command = [word.replace("/tmp/kata", f"{where}/kata") for word in job.spec["command"]]
        kind = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "start_new_session": True,
        }
        job.process = process = subprocess.Popen(command, cwd=where, env=env, **kind)
        job.began_s, job.stage = time.monotonic(), "RUNNING"
        limit_s = job.spec.get("timeoutSeconds", 1800)
        watch = threading.Timer(limit_s, self._out_of_time, args=(job,))
        watch.start()
        with process:
            for line in process.stdout:
                with job.changed:
                    job.events.append({"data": line.rstrip("\n"), "timestamp": now()})
                    job.changed.notify_all()
        status = process.returncode
        watch.cancel()
        with job.changed:
            job.ran_s = time.monotonic() - job.began_s
            if job.stage == "RUNNING":
                job.stage = "COMPLETED" if status == 0 else "ERROR"
                job.message = None if status == 0 else f"Job failed with exit code: {status}"
            job.changed.notify_all()

    def _out_of_time(self, job: Job) -> None:
        job.stage, job.message = "ERROR", "Job timeout"
        os.killpg(job.process.pid, 9)

    def commit(self, repo: str, lines: list[dict]) -> None:
        files = dict(self.repos[repo])
        for line in lines[1:]:
            value, path = line["value"], line["value"]["path"]
            if line["key"] == "file":
                files[path] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[path]
            elif line["key"] == "deletedFolder":
                files = {
                    name: content
                    for name, content in files.items()
                    if not name.startswith(path.rstrip("/") + "/")
                }
        self.repos[repo] = files
        self.commits.setdefault(repo, []).append(lines[0]["value"]["summary"])

    def sha(self, repo: str) -> str:
        return hashlib.sha1(repr((repo, len(self.commits.get(repo, [])))).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def log_message(self, *args):
        pass

    def do_GET(self):
        self._answer()

    do_HEAD = do_POST = do_GET  # noqa: N815 (the base class's names)

    def _answer(self):
        service, method = self.service, self.command
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        if any(part in path for part in service.refuses):
            return self._json({"error": "not now"}, 503)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json({"error": "Invalid username or password."}, 401)
        parts = path.strip("/").split("/")
        if path == "/api/whoami-v2":
            return self._json({"type": "user", "name": "me", "orgs": []})
        if path == "/api/repos/create":
            return self._create(json.loads(self.content))
        if parts[:2] == ["api", "jobs"]:
            return self._jobs(method, parts[2:])
        if parts[:2] == ["api", "models"]:
            return self._repo("/".join(parts[2:4]), parts[4:])
        if parts[2] == "resolve":
            return self._file("/".join(parts[:2]), "/".join(parts[4:]))
        return self._json({"error": f"no route {path}"}, 404)

    def _create(self, asked):
        repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
        known = repo in self.service.repos
        self.service.repos.setdefault(repo, {})
        self._json({"url": f"{self.service.url}/{repo}", "name": repo}, 409 if known else 200)

    def _repo(self, repo, rest):
        service = self.service
        if repo not in service.repos:
            return self._json(
                {"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"}
            )
        files = service.repos[repo]
        if rest[:1] == ["preupload"]:
            asked = json.loads(self.content)["files"]
            modes = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in asked
            ]
            return self._json({"files": modes})
        if rest[:1] == ["commit"]:
            service.commit(repo, [json.loads(line) for line in self.content.splitlines()])
            return self._json(
                {"commitUrl": f"{service.url}/{repo}/commit/x", "commitOid": service.sha(repo)}
            )
        if rest[:1] == ["tree"]:
            listed = [
                {"type": "file", "path": n, "size": len(c), "oid": _oid(c)}
                for n, c in sorted(files.items())
            ]
            return self._json(listed)
        return self._json(
            {
                "id": repo,
                "sha": service.sha(repo),
                "siblings": [{"rfilename": name} for name in files],
            }
        )

    def _file(self, repo, name):
        content = self.service.repos[repo].get(name)
        if content is None:
            return self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{_oid(content)}"')
        self.send_header("X-Repo-Commit", self.service.sha(repo))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
        return None

    def _jobs(self, method, parts):
        service = self.service
        if parts == ["hardware"]:
            return self._json([_hardware(*each) for each in HARDWARE])
        if method == "POST" and len(parts) == 1:
            return self._json(service.start(json.loads(self.content)).shown())
        if parts[1] not in service.jobs:
            return self._json({"error": "Job not found"}, 404)
        job = service.jobs[parts[1]]
        if parts[2:] == ["logs"]:
            return self._logs(job)
        if parts[2:] == ["cancel"]:
            job.stage = "CANCELED"
            os.killpg(job.process.pid, 9)
        return self._json(job.shown())

    def _logs(self, job):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        sent, over = 0, False
        while not over:
            with job.changed:
                over = job.stage not in ("SCHEDULING", "RUNNING")
                if len(job.events) == sent and not over:
                    job.changed.wait(0.5)
                events, sent = job.events[sent:], len(job.events)
            for event in events:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def _json(self, value, status=200, headers=None):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _oid(content: bytes) -> str:
    """Git's name of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _hardware(name, gpu, usd_per_hour):
    model, count, vram = gpu or ("", 0, 0)
    unit = {
        "type": "gpu",
        "model": model,
        "quantity": str(count),
        "vram": f"{vram} GB",
        "manufacturer": "Nvidia",
    }
    return {
        "name": name,
        "prettyName": name,
        "cpu": "2 vCPU",
        "ram": "16 GB",
        "ephemeralStorage": "20 GB",
        "accelerator": unit if gpu else None,
        "unitCostMicroUSD": round(usd_per_hour / 60 * 1e6),
        "unitCostUSD": usd_per_hour / 60,
        "unitLabel": "minute",
    }
