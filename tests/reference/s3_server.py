"""An S3 server (moto's) with one bucket, "models", that holds a folder.

usage: s3_server.py FOLDER PREFIX

Prints {"endpoint": URL} as one line and serves until its standard input ends.
"""

import json
import os
import sys
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer


def main() -> None:
    folder, prefix = Path(sys.argv[1]), sys.argv[2]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="someone",
        aws_secret_access_key="something",
    )
    client.create_bucket(Bucket="models")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), "models", f"{prefix}/{path.relative_to(folder)}")
    print(json.dumps({"endpoint": endpoint}), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    main()
