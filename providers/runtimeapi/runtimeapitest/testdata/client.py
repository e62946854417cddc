"""Drives the fake with the service's public client and prints what it saw.

    client.py URL KEY

Host names below .localhost are looked up as the loopback address, since not
every machine does so.
"""

import json
import socket
import sys

lookup = socket.getaddrinfo


def local(host, *args, **kwargs):
    name = host.decode() if isinstance(host, bytes) else host
    return lookup("127.0.0.1" if str(name).endswith(".localhost") else host, *args, **kwargs)


socket.getaddrinfo = local

import httpx  # noqa: E402
from openhands.workspace import APIRemoteWorkspace  # noqa: E402

url, key = sys.argv[1:]


def attach():
    return APIRemoteWorkspace(
        runtime_api_url=url,
        runtime_api_key=key,
        server_image="ghcr.io/openhands/agent-server:latest-python",
        session_id="python-client",
        resource_factor=2,
        keep_alive=False,
    )


def count(workspace):
    answer = httpx.get(
        workspace.host + "/api/conversations/count",
        headers={"X-Session-API-Key": workspace.api_key},
    )
    return answer.status_code


seen = {}
first = attach()
seen["host"] = first.host
seen["runtime_id"] = first._runtime_id
seen["started"] = count(first)
first.pause()
seen["paused"] = httpx.get(first.host + "/health").status_code
first.resume()
seen["old key"] = count(first)  # the client keeps the key from before
second = attach()  # finds the session that runs
seen["attached to"] = second._runtime_id
seen["new key"] = count(second)
second.pause()
third = attach()  # finds it paused, and resumes it
seen["resumed"] = third._runtime_id
first._runtime_id = None  # or its end would stop the box of the others
second._runtime_id = None
third.cleanup()
seen["stopped"] = httpx.get(url + "/sessions/python-client", headers={"X-API-Key": key}).status_code
print("SEEN " + json.dumps(seen))
