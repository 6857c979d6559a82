"""Python's `websockets`: URL and a position in, JSON lines out; {"send": text} on its input is sent."""

import json
import sys
import threading

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect


def say(**what):
    print(json.dumps(what), flush=True)


def send_what_is_told(connection):
    for line in sys.stdin:
        connection.send(json.loads(line)["send"])
    connection.close()


url, since = sys.argv[1].replace("http", "ws", 1), sys.argv[2]
with connect(f"{url}?since={since}", subprotocols=["ws+meta.nchan"]) as connection:
    say(kind="open")
    threading.Thread(target=send_what_is_told, args=[connection], daemon=True).start()
    try:
        for message in connection:
            head, _, data = message.partition("\n\n")
            fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
            say(kind="message", id=fields.get("id"), data=data)
    except ConnectionClosed as closed:
        say(kind="closed", code=closed.rcvd.code if closed.rcvd else None)
