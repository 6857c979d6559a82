// Node's `ws`: URL and a position in, JSON lines out; {"send": text} on its input is sent. With a file of roots and an address
// to come from, any name is 127.0.0.1, and the port stands for that of the scheme, which is not in Host.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { WebSocket } = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("ws");
const say = (what) => console.log(JSON.stringify(what));

const [url, since, roots, localAddress] = process.argv.slice(2);
const here = (name, { all }, found) => (all ? found(null, [{ address: "127.0.0.1", family: 4 }]) : found(null, "127.0.0.1", 4));
const options = roots && { ca: readFileSync(roots), localAddress, lookup: here, headers: { Host: new URL(url).hostname } };
const socket = new WebSocket(`${url.replace("http", "ws")}?since=${since}`, "ws+meta.nchan", options);
socket.on("open", () => say({ kind: "open" }));
socket.on("message", (bytes) => {
  const text = bytes.toString();
  const end = text.indexOf("\n\n");
  const id = /^id: (.*)$/m.exec(text.slice(0, end))?.[1];
  say({ kind: "message", id, data: text.slice(end + 2) });
});
socket.on("error", (error) => say({ kind: "error", error: String(error) }));
socket.on("close", (code) => {
  say({ kind: "closed", code });
  process.exit(0);
});

const input = createInterface({ input: process.stdin });
input.on("line", (line) => socket.send(JSON.parse(line).send));
input.on("close", () => socket.terminate());
