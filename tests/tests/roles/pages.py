"""Asks for pages over TLS as another program would: OpenSSL, not ours.

Reads a JSON list of [host:port, method, path, identity.pem or "", token or ""] from stdin; argument: the roots. Prints the list of
status codes.
"""
import http.client
import json
import ssl
import sys


def status(address, method, path, identity, token, roots, names):
    context = ssl.create_default_context(cafile=roots)
    # A worker's certificate is for its id, which no program but ours asks for.
    context.check_hostname = names
    if identity:
        context.load_cert_chain(identity)
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=20)
    headers = {"Authorization": "Bearer " + token} if token else {}
    body = None
    if method == "POST":
        headers["Content-Type"], body = "application/json", "{}"
    connection.request(method, path, body, headers)
    # Of events the head is enough: they do not end.
    return connection.getresponse().status


answers = [status(*wanted[:5], sys.argv[1], wanted[5]) for wanted in json.load(sys.stdin)]
print(json.dumps(answers))
