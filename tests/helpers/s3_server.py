"""An S3 server on loopback, with a bucket in it."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator

import boto3
import pytest
import s3fs


@contextlib.contextmanager
def s3_bucket(patch: pytest.MonkeyPatch, name: str) -> Iterator[str]:
    """Serve S3 and make the bucket; this process's s3:// goes there. Yields the bucket's URL."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for key, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        patch.setenv(key, value)
    # File systems are kept by their arguments, and these do not tell of the server.
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        # The server's state belongs to this process and outlives the server.
        urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
        boto3.client("s3").create_bucket(Bucket=name)
        yield f"s3://{name}"
    finally:
        server.stop()
