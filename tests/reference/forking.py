"""Runs scripts beside it, each in a fork of one process that has imported what takes longest.

usage: forking.py NAME    (tests/src/reference.rs starts it; NAME: of a socket in the abstract namespace)

A caller sends a line of JSON, {script, arguments, stdout, stderr}, the last two being files, and hears the exit code in a
line. Nothing comes where the script is killed. The process ends when nobody has asked for a minute.
"""
import quiet  # noqa: F401

import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

# Seconds.
IDLE, LONGEST = 60, 420


def run(connection):
    """In the fork, which ends with the script."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.alarm(LONGEST)
    wanted = json.loads(connection.makefile().readline())
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(wanted[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    script = Path(__file__).with_name(wanted["script"])
    sys.argv = [str(script), *wanted["arguments"]]
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(b"%d\n" % code)
    os._exit(0)


def main():
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind("\0" + sys.argv[1])
    except OSError:
        return  # Another one is there already.
    server.listen(64)
    server.settimeout(IDLE)
    import diffusers.loaders  # noqa: F401
    import torch.optim  # noqa: F401
    from diffusers import DDPMScheduler, StableDiffusionPipeline  # noqa: F401
    from transformers import CLIPTextModel, CLIPTokenizer, GPT2LMHeadModel  # noqa: F401
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            return
        connection.setblocking(True)
        if os.fork() == 0:
            server.close()
            run(connection)
        connection.close()


if __name__ == "__main__":
    main()
