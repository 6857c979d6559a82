"""cent, the library of Centrifugo's server API for Python: the URL of the API and a key in; the results of its calls out, as JSON lines."""

import json
import sys

from cent import (
    BatchRequest,
    BroadcastRequest,
    CentApiResponseError,
    CentUnauthorizedError,
    ChannelsRequest,
    Client,
    Disconnect,
    DisconnectRequest,
    HistoryRemoveRequest,
    HistoryRequest,
    InfoRequest,
    PresenceRequest,
    PublishRequest,
    RefreshRequest,
    UnsubscribeRequest,
)


def say(kind, **what):
    print(json.dumps({"kind": kind, **what}), flush=True)


def history(channel):
    kept = client.history(HistoryRequest(channel=channel, limit=-1))
    say("history", data=[publication.data for publication in kept.publications], offset=kept.offset)


url, key = sys.argv[1:]
client = Client(url, key)
published = client.publish(PublishRequest(channel="a", data={"n": 1}))
say("published", offset=published.offset, epoch=published.epoch)
client.broadcast(BroadcastRequest(channels=["a", "b"], data={"n": 2}))
history("a")
say("channels", names=sorted(client.channels(ChannelsRequest(pattern="*")).channels))
say("info", nodes=len(client.info(InfoRequest()).nodes))
batch = client.batch(BatchRequest(requests=[PublishRequest(channel="a", data=3), HistoryRequest(channel="a", limit=1, reverse=True)]))
say("batch", data=[publication.data for publication in batch.replies[1].publications])
client.history_remove(HistoryRemoveRequest(channel="a"))
history("a")
client.unsubscribe(UnsubscribeRequest(user="ann", channel="a"))
sys.stdin.readline()
client.refresh(RefreshRequest(user="ann", expire_at=4_000_000_000))
client.disconnect(DisconnectRequest(user="ann", disconnect=Disconnect(code=4500, reason="bye")))
try:
    client.presence(PresenceRequest(channel="a"))
except CentApiResponseError as error:
    say("refused", code=error.code)
try:
    Client(url, key[:-1]).info(InfoRequest())
except CentUnauthorizedError:
    say("unauthorized")
