"""HTTP/2 with Python's `httpx`: publishes, reads the history, then follows a topic over as many connections as it takes. The server's URL
and the file with its root in, JSON lines out."""

import json
import os
import ssl
import sys
import threading
import time

import httpx


def say(**what):
    print(json.dumps(what), flush=True)


def end_with_input():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_input, daemon=True).start()
url, root = sys.argv[1:]
verify = ssl.create_default_context(cafile=root) if root else False
# Without HTTP/1.1 it speaks HTTP/2 at once, with TLS and without.
open_client = lambda: httpx.Client(base_url=url, http1=False, http2=True, verify=verify, timeout=60, trust_env=False)

with open_client() as client:
    published = client.post("/pub/news", content="one")
    say(kind="published", status=published.status_code, version=published.http_version)
    say(kind="history", data=[message["data"] for message in client.get("/history/news").json()])

position = None
while True:
    headers = {"Accept": "text/event-stream"}
    if position is not None:
        headers["Last-Event-ID"] = position
    try:
        with open_client() as client, client.stream(
            "GET", "/sub/news", params=None if position else {"since": "oldest"}, headers=headers
        ) as response:
            data = None
            for line in response.iter_lines():
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if field == "id":
                    position = value
                elif field == "data":
                    data = value
                elif not line and data is not None:
                    say(kind="message", id=position, data=data)
                    data = None
    except httpx.HTTPError:
        time.sleep(0.05)
