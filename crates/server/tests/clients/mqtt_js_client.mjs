// mqtt.js: JSON commands on its input, JSON lines out; many clients, each with a name. The same
// commands and answers as `paho_client.py`.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const mqtt = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("mqtt");
const say = (what) => console.log(JSON.stringify(what));

const PROPERTIES = {
  payload_format: "payloadFormatIndicator",
  expiry_s: "messageExpiryInterval",
  content_type: "contentType",
  response_topic: "responseTopic",
  correlation: "correlationData",
  user: "userProperties",
  identifier: "subscriptionIdentifier",
  session_expiry_s: "sessionExpiryInterval",
  receive_max: "receiveMaximum",
  packet_max: "maximumPacketSize",
  alias: "topicAlias",
  alias_max: "topicAliasMaximum",
  delay_s: "willDelayInterval",
  problem_information: "requestProblemInformation",
  response_information: "requestResponseInformation",
  assigned_id: "assignedClientIdentifier",
  keep_alive_s: "serverKeepAlive",
  qos_max: "maximumQoS",
  retain_available: "retainAvailable",
  wildcards_available: "wildcardSubscriptionAvailable",
  identifiers_available: "subscriptionIdentifiersAvailable",
  shared_available: "sharedSubscriptionAvailable",
  reason: "reasonString",
};

/** Ours to theirs; user properties are a list of pairs here and an object of lists there. */
function packed(values = {}) {
  const out = {};
  for (const [name, value] of Object.entries(values)) {
    if (name === "user") {
      out.userProperties = {};
      for (const [key, text] of value) (out.userProperties[key] ??= []).push(text);
    } else if (name === "correlation") {
      out.correlationData = Buffer.from(value);
    } else {
      out[PROPERTIES[name]] = name === "payload_format" ? value === 1 : value;
    }
  }
  return out;
}

function unpacked(properties = {}) {
  const values = {};
  for (const [name, theirs] of Object.entries(PROPERTIES)) {
    const value = properties[theirs];
    if (value === undefined) continue;
    if (name === "user") {
      values.user = Object.entries(value).flatMap(([key, texts]) => [texts].flat().map((text) => [key, text]));
    } else if (name === "identifier") {
      values.identifier = [value].flat();
    } else if (name === "payload_format") {
      values[name] = Number(value);
    } else {
      values[name] = Buffer.isBuffer(value) ? value.toString() : value;
    }
  }
  return values;
}

const clients = {};

const actions = {
  connect(command) {
    const { client: name, version, door, port, will } = command;
    const client = mqtt.connect({
      protocol: door === "ws" ? "ws" : "mqtt",
      hostname: "127.0.0.1",
      port,
      path: "/mqtt",
      clientId: command.id,
      protocolVersion: version,
      clean: command.clean,
      keepalive: command.keep_alive_s ?? 60,
      reconnectPeriod: command.reconnect ? 200 : 0,
      username: command.user,
      password: command.password,
      properties: version === 5 ? packed(command.properties) : undefined,
      autoUseTopicAlias: command.auto_alias,
      autoAssignTopicAlias: command.auto_alias,
      resubscribe: false,
      will: will && { ...will, properties: version === 5 ? packed(will.properties) : undefined },
    });
    clients[name] = client;
    let said;
    client.on("connect", (packet) =>
      say({
        client: name,
        kind: "connack",
        reason: packet.reasonCode ?? packet.returnCode,
        session_present: packet.sessionPresent,
        properties: unpacked(packet.properties),
      }),
    );
    client.on("disconnect", (packet) => (said = packet.reasonCode));
    client.on("close", () => say({ client: name, kind: "closed", reason: said ?? 0, said: said !== undefined }));
    client.on("error", (error) => {
      // A refusal in the CONNACK comes as an error with its code.
      if (typeof error.code === "number") say({ client: name, kind: "connack", reason: error.code });
      // A client that reconnects by itself finds no server for a while.
      else if (error.code !== "ECONNRESET" && !command.reconnect) say({ client: name, kind: "error", error: String(error) });
    });
    client.on("message", (topic, payload, packet) =>
      say({
        client: name,
        kind: "message",
        topic,
        data: payload.toString(),
        qos: packet.qos,
        retain: packet.retain,
        dup: packet.dup,
        mid: packet.messageId ?? 0,
        properties: unpacked(packet.properties),
      }),
    );
  },
  subscribe({ client, version, filters, properties }) {
    const map = {};
    for (const it of filters) {
      map[it.filter] = { qos: it.qos, nl: it.no_local, rap: it.as_published, rh: it.handling };
    }
    clients[client].subscribe(map, version === 5 ? { properties: packed(properties) } : {}, (error, _, packet) =>
      say({ client, kind: "suback", reasons: packet?.granted ?? [error.code] }),
    );
  },
  unsubscribe({ client, filters }) {
    clients[client].unsubscribe(filters, (error, packet) =>
      say({ client, kind: "unsuback", reasons: packet?.granted ?? (error ? [error.code] : []) }),
    );
  },
  publish({ client, version, topic, payload, qos, retain, properties }) {
    const options = { qos, retain, properties: version === 5 ? packed(properties) : undefined };
    clients[client].publish(topic, payload, options, (error, packet) =>
      say({ client, kind: "published", reason: error?.code ?? packet?.reasonCode ?? 0 }),
    );
  },
  // All in one go, as an application that has much to say: what comes is in the order of the acknowledgements.
  burst({ client, version, topic, count, qos }) {
    for (let n = 0; n < count; n++) actions.publish({ client, version, topic, payload: String(n), qos });
  },
  disconnect({ client, version, reason, properties }) {
    const options = version === 5 ? { reasonCode: reason ?? 0, properties: packed(properties) } : {};
    clients[client].end(false, options);
  },
  cut({ client }) {
    clients[client].stream.destroy();
  },
};

const input = createInterface({ input: process.stdin });
input.on("line", (line) => {
  const command = JSON.parse(line);
  try {
    actions[command.do](command);
  } catch (error) {
    say({ client: command.client, kind: "error", error: String(error) });
  }
});
input.on("close", () => process.exit(0));
