// Headless Chromium on a page: the page's URL in, JSON commands on its input, JSON lines out.
import { createRequire } from "node:module";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const { chromium } = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("playwright-core");
const say = (what) => console.log(JSON.stringify(what));

const profile = mkdtempSync(join(tmpdir(), "crore-browser-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: [
    "--no-sandbox", // the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
const page = context.pages()[0] ?? (await context.newPage());
await page.exposeFunction("say", say);
await page.goto(process.argv[2]);

/** Each runs in the page. */
const actions = {
  cookie({ text }) {
    document.cookie = text;
    say({ kind: "done" });
  },
  eventsource({ url, withCredentials }) {
    const source = new EventSource(url, { withCredentials });
    source.onmessage = (event) => say({ kind: "message", id: event.lastEventId, data: event.data });
    source.addEventListener("crore.gap", (event) => say({ kind: "error", gap: event.data }));
    source.onerror = () => say({ kind: source.readyState === EventSource.CLOSED ? "closed" : "reconnecting" });
  },
  websocket({ url }) {
    const socket = new WebSocket(url, "ws+meta.nchan");
    socket.onmessage = ({ data: text }) => {
      const end = text.indexOf("\n\n");
      const id = /^id: (.*)$/m.exec(text.slice(0, end))?.[1];
      say({ kind: "message", id, data: text.slice(end + 2) });
    };
    socket.onclose = ({ code }) => say({ kind: "closed", code });
  },
  publish({ url, data }) {
    const socket = new WebSocket(url);
    socket.onopen = () => {
      socket.send(data);
      socket.close(1000);
    };
  },
  async poll({ url, options }) {
    try {
      const response = await fetch(url, options);
      say({ kind: "message", id: response.headers.get("etag") ?? "", data: await response.text() });
    } catch {
      say({ kind: "refused" });
    }
  },
};

const input = createInterface({ input: process.stdin });
input.on("close", async () => {
  await context.close();
  rmSync(profile, { recursive: true, force: true });
  process.exit(0);
});
say({ kind: "ready" });
for await (const line of input) {
  const command = JSON.parse(line);
  await page.evaluate(actions[command.do], command);
}
