#!/usr/bin/env python3
"""A gRPC client of a coordinator or worker that knows no .proto file: all it uses comes from server reflection.

usage: grpc_client.py ADDRESS services                       services and their methods
       grpc_client.py ADDRESS describe MESSAGE_OR_ENUM       its fields or values
       grpc_client.py ADDRESS call SERVICE/METHOD [JSON …]   any method; several JSON arguments are a request stream
       grpc_client.py ADDRESS submit JOB [--request-id ID] [--images DIR_OR_URI]   JOB: a .toml or .json job file, whose
                                                             [queue] is sent beside the rest
       grpc_client.py ADDRESS upload FILE                    content-addressed; prints the last answer, with the URI
       grpc_client.py ADDRESS watch JOB_ID [--after N]       events until the job ends
       grpc_client.py ADDRESS get | cancel JOB_ID
       grpc_client.py ADDRESS list | workers [--filter FILTER] [--order-by FIELD]   all pages, a line each
       grpc_client.py ADDRESS events JOB_ID [--filter FILTER] [--order-by FIELD]    the same

Prints JSON lines on stdout; 64-bit numbers as strings, as protobuf's JSON has them. Exit code 0; 1 after an error that
the server sent, which is printed as {"code", "message", "details"}; 3 when the server cannot be reached.
Run it with the python that setup.sh prints.
"""
import argparse
import base64
import hashlib
import json
import sys
import tomllib
import uuid
from pathlib import Path

import grpc
from google.protobuf import any_pb2, descriptor_pool, json_format, message_factory
from google.rpc import error_details_pb2  # noqa: F401  (registers the types that rich errors carry)
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

PACKAGE = "ringtune.v1"
CHUNK_BYTES = 256 * 1024


class ReflectionClient:
    """Calls methods by name with plain dictionaries, through descriptors asked of the server."""

    def __init__(self, address, timeout):
        self.channel = grpc.insecure_channel(address)
        self.timeout = timeout
        grpc.channel_ready_future(self.channel).result(timeout=timeout)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def services(self):
        for name in sorted(self.database.get_services()):
            service = self.pool.FindServiceByName(name)
            for method in service.methods:
                yield {
                    "service": name, "method": method.name, "input": method.input_type.full_name,
                    "output": method.output_type.full_name, "client_streaming": method.client_streaming,
                    "server_streaming": method.server_streaming,
                }

    def describe(self, name):
        try:
            message = self.pool.FindMessageTypeByName(name)
        except KeyError:
            enum = self.pool.FindEnumTypeByName(name)
            return {"enum": name, "values": {value.name: value.number for value in enum.values}}
        return {"message": name, "fields": {field.name: field.number for field in message.fields}}

    def call(self, method_name, requests, timeout=None):
        """Yields the answers as dictionaries. `requests`: dictionaries, one unless the method takes a stream."""
        service_name, _, name = method_name.rpartition("/")
        method = self.pool.FindServiceByName(service_name).methods_by_name[name]
        input_class = message_factory.GetMessageClass(method.input_type)
        output_class = message_factory.GetMessageClass(method.output_type)
        if not method.client_streaming and len(requests) != 1:
            raise ValueError(f"{method_name} takes one request, {len(requests)} given")
        messages = [json_format.ParseDict(request, input_class()) for request in requests]
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        invoke = getattr(self.channel, kind)(
            f"/{service_name}/{name}", request_serializer=input_class.SerializeToString,
            response_deserializer=output_class.FromString)
        answer = invoke(iter(messages) if method.client_streaming else messages[0], timeout=timeout or self.timeout)
        for message in answer if method.server_streaming else [answer]:
            yield json_format.MessageToDict(message, preserving_proto_field_name=True)


def read_job(path):
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


def upload_requests(content):
    header = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "offset": 0}
    yield {"header": header}
    for start in range(0, len(content), CHUNK_BYTES):
        # protobuf's JSON has bytes in base64.
        yield {"chunk": base64.b64encode(content[start : start + CHUNK_BYTES]).decode()}


def list_request(options):
    return {"filter": options.filter, "order_by": options.order_by}


def pages(client, method, request):
    """Every page of a list, as answered."""
    while True:
        (page,) = client.call(f"{PACKAGE}.{method}", [request])
        yield page
        request = {**request, "page_token": page.get("next_page_token", "")}
        if not request["page_token"]:
            return


def run(client, options):
    """The answers of the command, one dictionary for each line."""
    call = lambda method, request: client.call(f"{PACKAGE}.{method}", [request])
    match options.command:
        case "services":
            yield from client.services()
        case "describe":
            yield client.describe(options.name)
        case "call":
            requests = [json.loads(text) for text in options.requests] or [{}]
            yield from client.call(options.method, requests)
        case "submit":
            spec = read_job(options.job)
            if options.images:
                spec.setdefault("data", {})["images"] = options.images
            request = {"spec": spec, "queue": spec.pop("queue", {}), "request_id": options.request_id}
            yield from call("JobService/CreateJob", request)
        case "upload":
            requests = list(upload_requests(options.file.read_bytes()))
            yield from client.call(f"{PACKAGE}.ArtifactService/Upload", requests)
        case "watch":
            request = {"job_id": options.job_id, "after_sequence": options.after}
            answers = client.call(f"{PACKAGE}.JobService/WatchJob", [request], timeout=options.watch_timeout)
            # The others tell how far preparation is, or only that the stream is alive.
            yield from (answer["event"] for answer in answers if "event" in answer)
        case "get":
            yield from call("JobService/GetJob", {"job_id": options.job_id})
        case "cancel":
            yield from call("JobService/CancelJob", {"job_id": options.job_id, "reason": options.reason})
        case "list":
            yield from pages(client, "JobService/ListJobs", list_request(options))
        case "workers":
            yield from pages(client, "ClusterService/ListWorkers", list_request(options))
        case "events":
            yield from pages(client, "JobService/ListEvents", {"job_id": options.job_id, **list_request(options)})


def error_details(error):
    """The error's rich details as dictionaries, of the google.rpc types that are known."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        assert isinstance(detail, any_pb2.Any)
        yield json_format.MessageToDict(detail, preserving_proto_field_name=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", help="host:port, or an http:// URL")
    parser.add_argument("--timeout", type=float, default=20, help="seconds for a call and for the connection")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("services")
    for name in ("list", "workers", "events"):
        command = commands.add_parser(name)
        if name == "events":
            command.add_argument("job_id")
        command.add_argument("--filter", default="", help="for instance owner=ada AND labels.project=dicoo")
        command.add_argument("--order-by", default="", help="for instance create_time desc")
    commands.add_parser("describe").add_argument("name")
    call = commands.add_parser("call")
    call.add_argument("method", help="for instance ringtune.v1.JobService/GetJob")
    call.add_argument("requests", nargs="*", metavar="JSON")
    submit = commands.add_parser("submit")
    submit.add_argument("job", type=Path)
    submit.add_argument("--request-id", default=str(uuid.uuid4()))
    submit.add_argument("--images", help="instead of the job file's")
    commands.add_parser("upload").add_argument("file", type=Path)
    for name in ("get", "cancel", "watch"):
        command = commands.add_parser(name)
        command.add_argument("job_id")
        if name == "cancel":
            command.add_argument("--reason", default="cancelled by grpc_client.py")
        if name == "watch":
            command.add_argument("--after", type=int, default=0, help="only events with a greater sequence number")
            command.add_argument("--watch-timeout", type=float, default=600)
    return parser.parse_args()


def main():
    options = parse_arguments()
    address = options.address.removeprefix("http://").rstrip("/")
    try:
        client = ReflectionClient(address, options.timeout)
        for answer in run(client, options):
            print(json.dumps(answer), flush=True)
    except grpc.FutureTimeoutError:
        print(json.dumps({"code": "UNAVAILABLE", "message": f"nothing answers at {address}", "details": []}))
        return 3
    except grpc.RpcError as error:
        code, message = error.code().name, error.details()
        print(json.dumps({"code": code, "message": message, "details": list(error_details(error))}), flush=True)
        return 3 if error.code() == grpc.StatusCode.UNAVAILABLE else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
