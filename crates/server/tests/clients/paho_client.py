"""Eclipse Paho: JSON commands on its input, JSON lines out; many clients, each with a name.

A command's `do` is a function below; what happens to a client is told with its name, in the terms of
MQTT 5 whichever version it speaks: reason codes are numbers, properties have the specification's names.
"""

import json
import os
import socket
import sys
import threading

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

PROPERTIES = {
    "payload_format": "PayloadFormatIndicator",
    "expiry_s": "MessageExpiryInterval",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation": "CorrelationData",
    "user": "UserProperty",
    "identifier": "SubscriptionIdentifier",
    "session_expiry_s": "SessionExpiryInterval",
    "receive_max": "ReceiveMaximum",
    "packet_max": "MaximumPacketSize",
    "alias": "TopicAlias",
    "alias_max": "TopicAliasMaximum",
    "delay_s": "WillDelayInterval",
    "problem_information": "RequestProblemInformation",
    "response_information": "RequestResponseInformation",
    "assigned_id": "AssignedClientIdentifier",
    "keep_alive_s": "ServerKeepAlive",
    "qos_max": "MaximumQoS",
    "retain_available": "RetainAvailable",
    "wildcards_available": "WildcardSubscriptionAvailable",
    "identifiers_available": "SubscriptionIdentifierAvailable",
    "shared_available": "SharedSubscriptionAvailable",
    "reason": "ReasonString",
}

clients = {}
lock = threading.Lock()


def say(**what):
    with lock:
        print(json.dumps(what), flush=True)


def packed(kind, values):
    properties = Properties(kind)
    for name, value in (values or {}).items():
        if name == "user":
            value = [tuple(pair) for pair in value]
        elif name == "correlation":
            value = value.encode()
        setattr(properties, PROPERTIES[name], value)
    return properties


def unpacked(properties):
    values = {}
    for name, theirs in PROPERTIES.items():
        if properties is not None and hasattr(properties, theirs):
            value = getattr(properties, theirs)
            values[name] = value.decode() if isinstance(value, bytes) else value
    return values


def code(reason):
    return getattr(reason, "value", reason)


def connect(command):
    name, five = command["client"], command["version"] == 5
    door = command["door"]
    options = {} if five else {"clean_session": command["clean"]}
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2,
        client_id=command["id"],
        protocol=mqtt.MQTTv5 if five else mqtt.MQTTv311,
        transport="websockets" if door == "ws" else "tcp",
        reconnect_on_failure=command.get("reconnect", False),
        manual_ack=command.get("manual_ack", False),
        **options,
    )
    if door == "ws":
        client.ws_set_options(path="/mqtt")
    if will := command.get("will"):
        properties = packed(PacketTypes.WILLMESSAGE, will.get("properties")) if five else None
        client.will_set(will["topic"], will["payload"], will["qos"], will["retain"], properties)
    if "user" in command:
        client.username_pw_set(command["user"], command.get("password"))
    client.on_connect = lambda _, __, flags, reason, properties: say(
        client=name,
        kind="connack",
        reason=code(reason),
        session_present=bool(flags.session_present),
        properties=unpacked(properties),
    )
    client.on_disconnect = lambda _, __, flags, reason, properties: say(
        client=name, kind="closed", reason=code(reason), said=flags.is_disconnect_packet_from_server
    )
    client.on_subscribe = lambda _, __, mid, reasons, properties: say(
        client=name, kind="suback", reasons=[code(reason) for reason in reasons]
    )
    client.on_unsubscribe = lambda _, __, mid, reasons, properties: say(
        client=name, kind="unsuback", reasons=[code(reason) for reason in reasons]
    )
    client.on_publish = lambda _, __, mid, reason, properties: say(
        client=name, kind="published", reason=code(reason)
    )
    client.on_message = lambda _, __, message: say(
        client=name,
        kind="message",
        topic=message.topic,
        data=message.payload.decode(),
        qos=message.qos,
        retain=bool(message.retain),
        dup=bool(message.dup),
        mid=message.mid,
        properties=unpacked(message.properties if five else None),
    )
    clients[name] = client
    extra = {}
    if five:
        extra = {
            "clean_start": command["clean"],
            "properties": packed(PacketTypes.CONNECT, command.get("properties")),
        }
    client.connect("127.0.0.1", command["port"], command.get("keep_alive_s", 60), **extra)
    client.loop_start()


def subscribe(command):
    client, five = clients[command["client"]], command["version"] == 5
    if not five:
        client.subscribe([(it["filter"], it["qos"]) for it in command["filters"]])
        return
    options = [
        (
            it["filter"],
            SubscribeOptions(
                qos=it["qos"],
                noLocal=it.get("no_local", False),
                retainAsPublished=it.get("as_published", False),
                retainHandling=it.get("handling", 0),
            ),
        )
        for it in command["filters"]
    ]
    client.subscribe(options, properties=packed(PacketTypes.SUBSCRIBE, command.get("properties")))


def unsubscribe(command):
    clients[command["client"]].unsubscribe(command["filters"])


def publish(command):
    properties = None
    if command["version"] == 5:
        properties = packed(PacketTypes.PUBLISH, command.get("properties"))
    clients[command["client"]].publish(
        command["topic"], command["payload"], command["qos"], command["retain"], properties
    )


def ack(command):
    clients[command["client"]].ack(command["mid"], command["qos"])


def disconnect(command):
    client = clients[command["client"]]
    if command["version"] == 5:
        reason = ReasonCode(PacketTypes.DISCONNECT, identifier=command.get("reason", 0))
        client.disconnect(reason, packed(PacketTypes.DISCONNECT, command.get("properties")))
    else:
        client.disconnect()


def cut(command):
    """The connection ends without a DISCONNECT."""
    raw = clients[command["client"]].socket()
    getattr(raw, "_socket", raw).shutdown(socket.SHUT_RDWR)


for line in sys.stdin:
    command = json.loads(line)
    try:
        globals()[command["do"]](command)
    except Exception as error:
        say(client=command["client"], kind="error", error=repr(error))
os._exit(0)
