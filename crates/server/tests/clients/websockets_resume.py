"""Python's `websockets` over a network that fails: URL in, JSON lines out. Comes back with its position after every cut."""

import json
import os
import sys
import threading
import time

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect


def say(**what):
    print(json.dumps(what), flush=True)


def end_with_input():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_input, daemon=True).start()
url, since = sys.argv[1].replace("http", "ws", 1), "live"
while True:
    try:
        with connect(f"{url}?since={since}", subprotocols=["ws+meta.nchan"]) as connection:
            for message in connection:
                head, _, data = message.partition("\n\n")
                fields = dict(line.split(": ", 1) for line in head.splitlines())
                if "gap" in fields:
                    say(kind="error", gap=fields)
                since = fields["id"]
                say(kind="message", id=since, data=data)
    except (OSError, EOFError, WebSocketException) as error:
        say(kind="reconnecting", error=str(error))
    time.sleep(0.05)
