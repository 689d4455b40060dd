"""A model in an object store, for rows with a URL: a real S3 server, and the Run:ai streamer that asks it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from uv import find_uv_bin

from .uv_pip import pip

SERVER = Path(__file__).with_name("object_store_server.py")
MOTO = "moto[s3,server]==5.2.5"
STREAMER = ("runai-model-streamer==0.17.1", "runai-model-streamer-s3==0.17.1", "humanize==4.17.0", "boto3==1.44.8")
NEEDED = ("botocore==1.44.8", "s3transfer==0.19.3", "jmespath==1.1.0", "python-dateutil==2.9.0.post0", "six==1.17.0")
"""What vLLM's extra `runai` asks for, and what that needs beside the engine's own packages."""


@contextmanager
def serving(url: str, model: Path, place: Path) -> Iterator[dict[str, str]]:
    """Serve `model` (a directory) under `url` (``s3://bucket/prefix``); what the engine's environment needs for it.

    place: a directory for the streamer, which the pinned environments of the engines do not have.
    """
    parts = urlsplit(url)
    packages = place / "streamer"
    if not packages.is_dir():
        pip("install", "--target", str(packages), "--no-deps", *STREAMER, *NEEDED)
    command = [find_uv_bin(), "run", "--quiet", "--no-project", "--with", MOTO, str(SERVER)]
    command += [str(model), parts.netloc, parts.path.strip("/")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        try:
            yield {
                "PYTHONPATH": str(packages),
                "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
        finally:
            server.stdin.close()
