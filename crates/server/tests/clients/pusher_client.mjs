// pusher-js and the server library pusher: the data port, the admin port, the app's id, key and secret, and a user in; JSON lines out. {"subscribe": channel},
// {"unsubscribe": channel}, {"client": event, "channel": channel, "data": data}, {"signin": true}, {"trigger": [channels], "event": event, "data": data, "exclude": true},
// {"send": event, "to": user, "data": data}, {"batch": [...]}, {"get": path, "params": {...}} and {"terminate": user} on its input are done.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`);
const Pusher = require("pusher-js");
const Server = require("pusher");
const say = (what) => console.log(JSON.stringify(what));

const [data, admin, appId, key, secret, user] = process.argv.slice(2);
const [host, port] = data.split(":");
const [adminHost, adminPort] = admin.split(":");
const encryptionMasterKeyBase64 = Buffer.alloc(32, 7).toString("base64");
const server = new Server({ appId, key, secret, host: adminHost, port: adminPort, useTLS: false, encryptionMasterKeyBase64 });

// The library loads its own WebSocket for Node.
const client = new Pusher(key, {
  wsHost: host,
  wsPort: Number(port),
  forceTLS: false,
  enabledTransports: ["ws"],
  cluster: "",
  channelAuthorization: {
    customHandler: ({ socketId, channelName }, done) => {
      const presence = channelName.startsWith("presence-") ? { user_id: user, user_info: { name: user } } : undefined;
      done(null, server.authorizeChannel(socketId, channelName, presence));
    },
  },
  userAuthentication: {
    customHandler: ({ socketId }, done) => done(null, server.authenticateUser(socketId, { id: user })),
  },
});
client.connection.bind("state_change", ({ current }) => say({ kind: current, socket: client.connection.socket_id }));
client.connection.bind("error", ({ error, data, ...rest }) => say({ kind: "refused", ...(error?.data ?? data ?? rest) }));
client.bind_global((event, data) => {
  if (event === "pusher:signin_success") say({ kind: "signed_in" });
});
client.user.bind_global((event, data) => say({ kind: "user_event", event, data }));

const subscribe = (channel) => {
  const subscription = client.subscribe(channel);
  subscription.bind_global((event, data) => {
    if (event === "pusher:subscription_succeeded") {
      const members = data?.members ? Object.keys(data.members) : [];
      say({ kind: "subscribed", channel, members, me: subscription.members?.me?.id });
    } else if (event === "pusher:subscription_error") say({ kind: "not_subscribed", channel, ...data });
    else if (event === "pusher:member_added") say({ kind: "added", channel, id: data.id, info: data.info });
    else if (event === "pusher:member_removed") say({ kind: "removed", channel, id: data.id });
    else if (event === "pusher:cache_miss") say({ kind: "cache_miss", channel });
    else say({ kind: "event", channel, event, data });
  });
};

const answered = async (kind, asked, more) => {
  try {
    const response = await asked;
    const text = await response.text();
    say({ kind, status: response.status, body: text && JSON.parse(text), ...more });
  } catch (error) {
    say({ kind: "refused_by_api", status: error.status, message: String(error.body ?? error.message) });
  }
};

const input = createInterface({ input: process.stdin });
input.on("line", (line) => {
  const command = JSON.parse(line);
  if ("subscribe" in command) subscribe(command.subscribe);
  if ("unsubscribe" in command) client.unsubscribe(command.unsubscribe);
  if ("client" in command) client.channel(command.channel).trigger(command.client, command.data);
  if ("signin" in command) client.signin();
  if ("trigger" in command) {
    const more = command.exclude ? { socket_id: client.connection.socket_id } : {};
    answered("triggered", server.trigger(command.trigger, command.event, command.data, more), { event: command.event });
  }
  if ("send" in command) answered("triggered", server.sendToUser(command.to, command.send, command.data), { event: command.send });
  if ("batch" in command) answered("triggered", server.triggerBatch(command.batch));
  if ("get" in command) answered("got", server.get({ path: command.get, params: command.params ?? {} }));
  if ("terminate" in command) answered("terminated", server.terminateUserConnections(command.terminate));
});
input.on("close", () => process.exit(0));
