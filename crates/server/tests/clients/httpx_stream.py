"""An event stream over Python's `httpx`: URL and a position in, JSON lines out."""

import json
import os
import sys
import threading

import httpx


def say(**what):
    print(json.dumps(what), flush=True)


def end_with_input():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_input, daemon=True).start()
url, since = sys.argv[1:]
headers = {"Accept": "text/event-stream"}
if since != "live":
    headers["Last-Event-ID"] = since
with httpx.stream("GET", url, headers=headers, timeout=60, trust_env=False) as response:
    response.raise_for_status()
    say(kind="open")
    position, data = None, []
    for line in response.iter_lines():
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line and data:
            say(kind="message", id=position, data="\n".join(data))
            data = []
        elif field == "data":
            data.append(value)
        elif field == "id":
            position = value
say(kind="closed")
