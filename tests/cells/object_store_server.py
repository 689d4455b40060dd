"""An S3 server on the loopback (moto's) with the files of a directory in it; prints its address, ends with its stdin.

uv run --no-project --with 'moto[s3,server]' object_store_server.py <directory> <bucket> <prefix>
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer


def main(directory: Path, bucket: str, prefix: str) -> None:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket=bucket)
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(directory).as_posix()}")
    print(address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
