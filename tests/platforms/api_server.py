#!/usr/bin/env python3
"""Plays an API server of Kubernetes for pods that patch Secrets, and the kubelet, which mounts what is in them.

    api_server.py FOLDER

FOLDER/account becomes a service account's folder, FOLDER/secrets/NAME what is mounted of the Secret NAME, which has to be there.
Prints its port. The first call is answered with 503.
"""

import http.server
import json
import os
import re
import ssl
import subprocess
import sys

folder = sys.argv[1]
account = f"{folder}/account"
TOKEN = "the-accounts-token"
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)


def make_account():
    os.makedirs(account)
    openssl("req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out", "account/ca.crt", "-subj", "/CN=ca", "-days", "2")
    openssl("req", "-new", *NEW_KEY, "-keyout", "api.key", "-out", "api.csr", "-subj", "/CN=api")
    with open(f"{folder}/names", "w") as file:
        file.write("subjectAltName=IP:127.0.0.1")
    openssl("x509", "-req", "-in", "api.csr", "-CA", "account/ca.crt", "-CAkey", "ca.key", "-set_serial", "1", "-out", "api.crt",
            "-days", "2", "-extfile", "names")
    for name, text in [("token", TOKEN), ("namespace", "ringtune\n")]:
        with open(f"{account}/{name}", "w") as file:
            file.write(text)


class Server(http.server.BaseHTTPRequestHandler):
    calls = 0

    def do_PATCH(self):
        Server.calls += 1
        body = self.rfile.read(int(self.headers["content-length"]))
        if Server.calls == 1:
            return self.answer(503, "starting")
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, "Unauthorized")
        found = re.fullmatch("/api/v1/namespaces/ringtune/secrets/([a-z.-]+)", self.path)
        name = found and found[1]
        if name == "others":
            return self.answer(403, 'secrets "others" is forbidden: User "ringtune" cannot patch resource "secrets"')
        if self.headers["content-type"] != "application/merge-patch+json" or not name:
            return self.answer(415, "UnsupportedMediaType")
        mounted = f"{folder}/secrets/{name}"
        if not os.path.isdir(mounted):
            return self.answer(404, f'secrets "{name}" not found')
        for key, value in json.loads(body)["stringData"].items():
            with open(f"{folder}/{key}", "w") as file:
                file.write(value)
            os.rename(f"{folder}/{key}", f"{mounted}/{key}")
        self.answer(200, "patched")

    def answer(self, status, message):
        body = json.dumps({"kind": "Status", "message": message}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


make_account()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{folder}/api.crt", f"{folder}/api.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
