"""centrifuge-python, with the arguments, the input and the output of centrifuge_client.mjs."""

import asyncio
import json
import os
import sys

from centrifuge import Client
from centrifuge.exceptions import ReplyError

address, form, token, *channels = sys.argv[1:]
is_protobuf = form == "protobuf"


def say(kind, **what):
    print(json.dumps({"kind": kind, **what}), flush=True)


def encoded(data):
    return json.dumps(data).encode() if is_protobuf else data


def value(data):
    return json.loads(data) if is_protobuf else data


def saying(kind, members=lambda event: {}, **what):
    async def handler(event):
        say(kind, **what, **members(event))

    return handler


def reason(event):
    return {"code": event.code, "reason": event.reason}


def subscribe(client, channel):
    subscription = client.get_subscription(channel)
    if subscription is None:
        subscription = client.new_subscription(channel, min_resubscribe_delay=0.05, join_leave=True)
        events = subscription.events
        events.on_publication = saying("message", lambda it: {"data": value(it.pub.data), "offset": it.pub.offset}, channel=channel)
        events.on_subscribed = saying("subscribed", lambda it: {"recovered": it.recovered, "wasRecovering": it.was_recovering}, channel=channel)
        events.on_unsubscribed = saying("unsubscribed", reason, channel=channel)
        events.on_join = saying("join", lambda it: {"client": it.info.client}, channel=channel)
        events.on_leave = saying("leave", lambda it: {"client": it.info.client}, channel=channel)
        events.on_error = saying("refused", lambda it: {"code": it.code}, channel=channel)
    return subscription.subscribe()


async def act(client, command):
    try:
        if "publish" in command:
            await client.publish(command["publish"], encoded(command["data"]))
            say("published")
        if "unsubscribe" in command:
            await client.get_subscription(command["unsubscribe"]).unsubscribe()
        if "subscribe" in command:
            await subscribe(client, command["subscribe"])
        if "rpc" in command:
            await client.rpc(command["rpc"], encoded({}))
            say("called")
        if "history" in command:
            page = await client.history(command["history"], limit=-1)
            say("history", data=[value(publication.data) for publication in page.publications])
    except ReplyError as error:
        say("refused", code=error.code)


async def main():
    client = Client(
        f"ws://{address}/connection/websocket",
        token=token,
        use_protobuf=is_protobuf,
        min_reconnect_delay=0.05,
        max_reconnect_delay=0.2,
        proxy=None,
    )
    client.events.on_connected = saying("connected")
    client.events.on_connecting = saying("connecting", reason)
    client.events.on_disconnected = saying("disconnected", reason)
    for channel in channels:
        await subscribe(client, channel)
    await client.connect()
    while line := await asyncio.to_thread(sys.stdin.readline):
        await act(client, json.loads(line))
    os._exit(0)


asyncio.run(main())
