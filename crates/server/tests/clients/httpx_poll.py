"""Long-poll over Python's `httpx`: URL and a position in, JSON lines out."""

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
with httpx.Client(timeout=60, trust_env=False) as client:
    headers, query = ({}, {"since": "live"}) if since == "live" else ({"If-None-Match": since}, {})
    while True:
        response = client.get(url, headers=headers, params=query)
        if response.status_code == 200:
            headers, query = {"If-None-Match": response.headers["ETag"]}, {}
            say(kind="message", id=response.headers["ETag"], data=response.text)
        elif response.status_code not in (204, 304):
            say(kind="error", status=response.status_code)
            break
