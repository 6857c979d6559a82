// centrifuge-js: an address, the form (json or protobuf, and behind a slash a transport other than WebSocket) and channels in, JSON lines out; {"publish": channel, "data": data} on its input is
// published, {"unsubscribe": channel} and {"subscribe": channel} are done, {"history": channel} is asked for.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`);
const { WebSocket } = require("ws");
const { EventSource } = require("eventsource");
const say = (what) => console.log(JSON.stringify(what));

const [address, form, token, ...channels] = process.argv.slice(2);
const [data, transport = "websocket"] = form.split("/");
const protobuf = data === "protobuf";
const { Centrifuge } = require(protobuf ? "centrifuge/build/protobuf" : "centrifuge");
const bytes = (data) => (protobuf ? new TextEncoder().encode(JSON.stringify(data)) : data);
const value = (data) => (protobuf ? JSON.parse(new TextDecoder().decode(data)) : data);

const scheme = transport === "websocket" ? "ws" : "http";
const endpoint = `${scheme}://${address}/connection/${transport}`;
const client = new Centrifuge([{ transport, endpoint }], {
  websocket: WebSocket,
  eventsource: EventSource,
  fetch,
  readableStream: ReadableStream,
  emulationEndpoint: `http://${address}/emulation`,
  token,
  minReconnectDelay: 50,
  maxReconnectDelay: 200,
});
for (const kind of ["connected", "connecting", "disconnected"]) {
  client.on(kind, ({ code, reason }) => say({ kind, code, reason }));
}
client.on("error", ({ error }) => say({ kind: "trouble", ...error }));
const subscribe = (channel) => {
  const subscription = client.getSubscription(channel) ?? client.newSubscription(channel, { minResubscribeDelay: 50, joinLeave: true });
  subscription.removeAllListeners();
  subscription.on("publication", ({ data, offset }) => say({ kind: "message", channel, data: value(data), offset }));
  subscription.on("subscribed", ({ recovered, wasRecovering }) => say({ kind: "subscribed", channel, recovered, wasRecovering }));
  subscription.on("unsubscribed", ({ code, reason }) => say({ kind: "unsubscribed", channel, code, reason }));
  for (const kind of ["join", "leave"]) subscription.on(kind, ({ info }) => say({ kind, channel, client: info.client }));
  subscription.on("error", ({ error }) => say({ kind: "refused", channel, code: error.code }));
  subscription.subscribe();
};
channels.forEach(subscribe);
client.connect();

const done = (kind) => [() => say({ kind }), (error) => say({ kind: "refused", code: error.code })];
const input = createInterface({ input: process.stdin });
input.on("line", (line) => {
  const command = JSON.parse(line);
  if ("publish" in command) client.publish(command.publish, bytes(command.data)).then(...done("published"));
  if ("unsubscribe" in command) client.getSubscription(command.unsubscribe).unsubscribe();
  if ("subscribe" in command) subscribe(command.subscribe);
  if ("rpc" in command) client.rpc(command.rpc, bytes({})).then(...done("called"));
  if ("history" in command) {
    client.history(command.history, { limit: -1 }).then(
      ({ publications }) => say({ kind: "history", data: publications.map(({ data }) => value(data)) }),
      (error) => say({ kind: "refused", code: error.code }),
    );
  }
});
input.on("close", () => process.exit(0));
