"""``forked_client.py SOCKET ARGUMENTS...``: let a `ForkServer` run a program with the streams of this process."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    asked = {"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
    message = json.dumps(asked).encode() + b"\n"
    sent = socket.send_fds(connection, [message], [0, 1, 2])
    connection.sendall(message[sent:])
    answer = connection.recv(16)
status = int(answer or 1)
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
