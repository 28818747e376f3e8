#!/usr/bin/env python3
"""Request the broker's API versions, as Kafka's program of this name: `--bootstrap-server HOST:PORT`."""

import socket
import struct
import sys

_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # its length, ApiVersions, version 0, its number, no client id
_HEAD_BYTES = 8  # of the answer: its length, and the number of the request

host, _, port = sys.argv[2].rpartition(":")
with socket.create_connection((host, int(port)), timeout=5) as broker:
    broker.sendall(_REQUEST)
    sys.exit(len(broker.recv(_HEAD_BYTES)) < _HEAD_BYTES)
