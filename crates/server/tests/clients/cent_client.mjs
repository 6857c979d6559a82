// cent.js, with the arguments, the input and the output of cent_client.py. It says of no error which one it is.
import { createRequire } from "node:module";
import { createInterface } from "node:readline/promises";

const require = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`);
const { CentClient, CentException } = require("cent.js");
const say = (kind, what = {}) => console.log(JSON.stringify({ kind, ...what }));

const [url, apiKey] = process.argv.slice(2);
const client = new CentClient({ url, apiKey });
const data = ({ publications }) => publications.map(({ data }) => data);
const history = async (channel) => {
  const kept = await client.getHistory({ channel, limit: -1 });
  say("history", { data: data(kept), offset: kept.offset });
};

say("published", await client.publish({ channel: "a", data: { n: 1 } }));
await client.broadcast({ channels: ["a", "b"], data: { n: 2 } });
await history("a");
const { channels } = await client.getChannels({ pattern: "*" });
say("channels", { names: Object.keys(channels).sort() });
say("info", { nodes: (await client.getInfo()).nodes.length });
const replies = await client.pipeline([
  { method: "publish", params: { channel: "a", data: 3 } },
  { method: "history", params: { channel: "a", limit: 1, reverse: true } },
]);
say("batch", { data: data(replies[1]) });
await client.removeHistory({ channel: "a" });
await history("a");
await client.unsubscribe({ user: "ann", channel: "a" });
await createInterface({ input: process.stdin }).question("");
await client.refresh({ user: "ann", expire_at: 4_000_000_000 });
await client.disconnect({ user: "ann", disconnect: { code: 4500, reason: "bye" } });
await client.getPresence({ channel: "a" }).catch((error) => {
  if (error instanceof CentException) say("refused");
});
await new CentClient({ url, apiKey: apiKey.slice(1) }).getInfo().catch(() => say("unauthorized"));
process.exit(0);
