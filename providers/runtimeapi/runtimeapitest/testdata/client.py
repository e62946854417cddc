"""Drives fakes with the service's public client and prints what it saw, one line each.

    client.py KEY URL...

Host names below .localhost are looked up as the loopback address, since not
every machine does so. The client waits for two seconds after each look, which shows
nothing here: its waits are cut short.
"""

import json
import socket
import sys
import time

sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.01))

lookup = socket.getaddrinfo


def local(host, *args, **kwargs):
    name = host.decode() if isinstance(host, bytes) else host
    return lookup("127.0.0.1" if str(name).endswith(".localhost") else host, *args, **kwargs)


socket.getaddrinfo = local

import httpx  # noqa: E402
from openhands.workspace import APIRemoteWorkspace  # noqa: E402

# Version 1.58.2 asserts that the address it got equals the one that its HTTP library
# keeps, which adds a slash to a path: no address with a path would pass.
equal = httpx.URL.__eq__
httpx.URL.__eq__ = lambda a, b: equal(a, b) or str(a) == str(b) + "/"

key = sys.argv[1]


def attach(url):
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


def drive(url):
    seen = {}
    first = attach(url)
    seen["host"] = first.host
    seen["runtime_id"] = first._runtime_id
    seen["started"] = count(first)
    first.pause()
    seen["paused"] = httpx.get(first.host + "/health").status_code
    first.resume()
    seen["old key"] = count(first)  # the client keeps the key from before
    second = attach(url)  # finds the session that runs
    seen["attached to"] = second._runtime_id
    seen["new key"] = count(second)
    second.pause()
    third = attach(url)  # finds it paused, and resumes it
    seen["resumed"] = third._runtime_id
    first._runtime_id = None  # or its end would stop the box of the others
    second._runtime_id = None
    third.cleanup()
    seen["stopped"] = httpx.get(url + "/sessions/python-client", headers={"X-API-Key": key}).status_code
    return seen


for url in sys.argv[2:]:
    print("SEEN " + json.dumps(drive(url)))
