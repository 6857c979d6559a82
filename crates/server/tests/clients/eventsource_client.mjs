// Node's `eventsource`: URL in, JSON lines out. It reconnects by itself.
import { createRequire } from "node:module";

const { EventSource } = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("eventsource");
const say = (what) => console.log(JSON.stringify(what));

const source = new EventSource(process.argv[2]);
source.onopen = () => say({ kind: "open" });
source.onmessage = (event) => say({ kind: "message", id: event.lastEventId, data: event.data });
source.addEventListener("crore.gap", (event) => say({ kind: "error", gap: event.data }));
source.onerror = () => say({ kind: source.readyState === EventSource.CLOSED ? "closed" : "reconnecting" });

process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
