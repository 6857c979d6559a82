// Pusher's server library for Node, and a receiver of webhooks. The app's id, key and secret in; JSON lines out. {"server": address},
// {"auth": socket_id, "channel": channel, "user": user}, {"sign_in": socket_id, "user": user}, {"trigger": channel, "data": data},
// {"batch": channel}, {"channels": prefix}, {"users": channel} and {"webhooks": true} on its input are done.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const Server = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("pusher");
const say = (what) => console.log(JSON.stringify(what));

const [appId, key, secret] = process.argv.slice(2);
const connectedTo = (address) => {
  const [host, port] = address.split(":");
  return new Server({ appId, key, secret, host, port, useTLS: false });
};

const webhooks = [];
const receiver = createServer(async (request, response) => {
  let rawBody = "";
  for await (const part of request) rawBody += part;
  const webhook = connectedTo("localhost:1").webhook({ headers: request.headers, rawBody });
  webhooks.push(webhook);
  response.end();
});
receiver.listen(0, "127.0.0.1", () => say({ kind: "listens", port: receiver.address().port }));

let server;
const input = createInterface({ input: process.stdin });
input.on("line", async (line) => {
  const command = JSON.parse(line);
  if ("server" in command) server = connectedTo(command.server);
  if ("auth" in command) {
    const { auth, channel, user } = command;
    const data = channel.startsWith("presence-") ? { user_id: user } : undefined;
    say({ kind: "auth", ...server.authorizeChannel(auth, channel, data) });
  }
  if ("sign_in" in command) say({ kind: "sign_in", ...server.authenticateUser(command.sign_in, { id: command.user }) });
  if ("trigger" in command) {
    await server.trigger(command.trigger, "x", command.data);
    say({ kind: "triggered" });
  }
  if ("batch" in command) {
    await server.triggerBatch([1, 2].map((n) => ({ channel: command.batch, name: `batch-${n}`, data: { n } })));
    say({ kind: "triggered" });
  }
  if ("channels" in command) {
    const params = { filter_by_prefix: command.channels, info: "user_count" };
    const answer = await server.get({ path: "/channels", params });
    say({ kind: "channels", ...(await answer.json()) });
  }
  if ("users" in command) {
    const answer = await server.get({ path: `/channels/${command.users}/users` });
    say({ kind: "users", ...(await answer.json()) });
  }
  if ("webhooks" in command) {
    const valid = webhooks.filter((webhook) => webhook.isValid());
    say({ kind: "webhooks", events: valid.flatMap((webhook) => webhook.getEvents()), are_valid: valid.length === webhooks.length });
  }
});
input.on("close", () => process.exit(0));
