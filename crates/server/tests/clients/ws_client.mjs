// Node's `ws`: URL and a position in, JSON lines out; {"send": text} on its input is sent.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { WebSocket } = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("ws");
const say = (what) => console.log(JSON.stringify(what));

const [url, since] = process.argv.slice(2);
const socket = new WebSocket(`${url.replace("http", "ws")}?since=${since}`, "ws+meta.nchan");
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
