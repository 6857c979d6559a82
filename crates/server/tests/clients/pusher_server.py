"""Pusher's server library for Python, and a receiver of webhooks. The app's id, key and secret in; JSON lines out. {"server": address},
{"auth": socket_id, "channel": channel, "user": user}, {"sign_in": socket_id, "user": user},
{"trigger": channel, "data": data}, {"batch": channel}, {"channels": prefix}, {"users": channel} and {"webhooks": true} on its input are done."""
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pusher

app_id, key, secret = sys.argv[1:4]


def say(kind, **what):
    print(json.dumps({"kind": kind, **what}), flush=True)


def connected_to(address):
    host, port = address.split(":")
    return pusher.Pusher(app_id=app_id, key=key, secret=secret, host=host, port=int(port), ssl=False)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        sent = self.headers["X-Pusher-Key"], self.headers["X-Pusher-Signature"], body
        webhook = connected_to("localhost:1").validate_webhook(*sent)
        webhooks.append(webhook)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


webhooks = []
receiver = HTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=receiver.serve_forever, daemon=True).start()
say("listens", port=receiver.server_port)
server = None
for line in sys.stdin:
    command = json.loads(line)
    if "server" in command:
        server = connected_to(command["server"])
    if "auth" in command:
        data = {"user_id": command["user"]} if command["channel"].startswith("presence-") else None
        say("auth", **server.authenticate(command["channel"], command["auth"], data))
    if "trigger" in command:
        server.trigger(command["trigger"], "x", command["data"])
        say("triggered")
    if "sign_in" in command:
        say("sign_in", **server.authenticate_user(command["sign_in"], {"id": command["user"]}))
    if "batch" in command:
        server.trigger_batch([{"channel": command["batch"], "name": f"batch-{n}", "data": {"n": n}} for n in (1, 2)])
        say("triggered")
    if "channels" in command:
        say("channels", **server.channels_info(command["channels"], ["user_count"]))
    if "users" in command:
        say("users", users=server.users_info(command["users"])["users"])
    if "webhooks" in command:
        valid = [webhook for webhook in webhooks if webhook]
        events = [event for webhook in valid for event in webhook["events"]]
        say("webhooks", events=events, are_valid=len(valid) == len(webhooks))
