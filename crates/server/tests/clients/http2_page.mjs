// A page in headless Chromium that follows many topics of its own origin, each with an `EventSource` or a WebSocket. The origin and the
// server's certificate, which the browser is to trust, in; JSON commands on its input; a JSON line for the answer of each.
import { createHash, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { chromium } = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("playwright-core");
const say = (what) => console.log(JSON.stringify(what));
const PATIENCE_MS = 60_000;

const [origin, certificate] = process.argv.slice(2);
const key = new X509Certificate(readFileSync(certificate)).publicKey.export({ type: "spki", format: "der" });
const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: [
    "--no-sandbox", // the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    // The test makes the page up, so Chromium does not know that it is of this host, as the server is.
    "--disable-features=LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets",
    `--ignore-certificate-errors-spki-list=${createHash("sha256").update(key).digest("base64")}`,
  ],
});
const page = await browser.newPage();
page.setDefaultTimeout(PATIENCE_MS);

/** The page itself, which runs in the browser. It begins at the oldest message of each topic. */
const script = () => {
  window.heard = {};
  window.complaints = [];
  const hear = (topic, data) => window.heard[topic].push(data);
  const eventSource = (topic) => {
    const source = new EventSource(`/sub/${topic}?since=oldest`);
    source.onmessage = ({ data }) => hear(topic, data);
    source.addEventListener("crore.gap", ({ data }) => window.complaints.push(`${topic}: a gap: ${data}`));
    source.onerror = () => source.readyState === EventSource.CLOSED && window.complaints.push(`${topic}: closed`);
  };
  const webSocket = (topic, since) => {
    const socket = new WebSocket(`wss://${location.host}/sub/${topic}?since=${since}`, "ws+meta.nchan");
    socket.onmessage = ({ data: text }) => {
      const end = text.indexOf("\n\n");
      since = /^id: (.*)$/m.exec(text.slice(0, end))?.[1];
      hear(topic, text.slice(end + 2));
    };
    socket.onclose = () => setTimeout(() => webSocket(topic, since), 200);
  };
  window.follow = (streams, sockets) => {
    for (const topic of [...streams, ...sockets]) window.heard[topic] = [];
    streams.forEach(eventSource);
    sockets.forEach((topic) => webSocket(topic, "oldest"));
  };
};

const actions = {
  /** Loads the page again, and follows these topics. */
  async open({ streams, sockets }) {
    // The server has no page. The browser asks it for everything else.
    await page.route(`${origin}/page`, (route) => route.fulfill({ contentType: "text/html", body: "<!doctype html><title>page</title>" }));
    await page.goto(`${origin}/page`);
    await page.unrouteAll();
    await page.evaluate(script);
    await page.evaluate(({ streams, sockets }) => window.follow(streams, sockets), { streams, sockets });
  },
  /** Waits until each topic has this many messages. */
  async heard({ count }) {
    await page.waitForFunction((count) => Object.values(window.heard).every((list) => list.length >= count), count, { polling: 50 });
    return page.evaluate(() => window.heard);
  },
  async complaints() {
    return page.evaluate(() => window.complaints);
  },
};

const input = createInterface({ input: process.stdin });
input.on("close", async () => {
  await browser.close();
  process.exit(0);
});
say({ kind: "ready" });
for await (const line of input) {
  const { do: what, ...given } = JSON.parse(line);
  try {
    say({ kind: "done", value: (await actions[what](given)) ?? null });
  } catch (error) {
    say({ kind: "error", what, message: error.message });
  }
}
