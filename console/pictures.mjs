// `cargo xtask console --pictures`: a server with some clients of each protocol, and the pictures of docs/console.
//
// Clients open one after another, so that the charts show them coming, and then stay. About twenty messages a second are published, and a hundred
// now and then.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { Agent, get as httpGet, request } from "node:http";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";

const { values: args } = parseArgs({
  options: {
    program: { type: "string" },
    out: { type: "string", default: "docs/console" },
    seconds: { type: "string", default: "150" },
  },
});
const seconds = Number(args.seconds);

const tools = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`);
const { chromium } = tools("playwright-core");
const mqtt = tools("mqtt");
const WebSocket = tools("ws");
const sleep = (s) => new Promise((done) => setTimeout(done, s * 1000));
const freePort = () =>
  new Promise((done) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });

const SCORES = ["scores/football/7", "scores/tennis/2"];
/** Clients of each kind, by what they do when they open. */
const COUNTS = { webSocket: 120, events: 60, device: 25, poll: 12 };

const directory = mkdtempSync(join(tmpdir(), "crore-pictures-"));
const [port, admin] = [await freePort(), await freePort()];
const data = `http://127.0.0.1:${port}`;
writeFileSync(join(directory, "crore.toml"), '[[rule]]\nmatch = "chat/#"\nlog_messages = 100\n');
const server = spawn(
  args.program,
  ["--log", "warn", "serve", "--listen", `127.0.0.1:${port}`, "--admin-listen", `127.0.0.1:${admin}`, "--config", "crore.toml"],
  { stdio: ["ignore", "ignore", "inherit"], cwd: directory },
);

const clients = {
  webSocket(n) {
    const topic = n % 4 === 3 ? "chat/lobby" : SCORES[n % 2];
    new WebSocket(`ws://127.0.0.1:${port}/sub/${topic}`).on("error", () => {});
  },
  events(n) {
    const topic = ["chat/lobby", SCORES[0], "news/world"][n % 3];
    httpGet(`${data}/sub/${topic}`, { headers: { Accept: "text/event-stream" }, agent: false }, (answer) => answer.resume()).on("error", () => {});
  },
  poll(_, etag = "") {
    const headers = etag === "" ? {} : { "If-None-Match": etag };
    const again = (answer) => {
      answer.resume();
      answer.on("end", () => clients.poll(0, answer.headers.etag ?? etag));
    };
    httpGet(`${data}/sub/chat/lobby`, { headers, agent: false }, again).on("error", () => {});
  },
  device(n) {
    const device = mqtt.connect(`mqtt://127.0.0.1:${port}`, { clientId: `device-${n}`, protocolVersion: 5, properties: { sessionExpiryInterval: 3600 }, clean: false });
    device.on("error", () => {});
    const of = { [`devices/${n}/commands`]: { qos: 2 }, "sensors/+/temperature": { qos: 0 }, "alerts/#": { qos: 1 }, "$share/workers/jobs/#": { qos: 1 } };
    device.on("connect", () => device.subscribe(n % 5 === 3 ? of : { "sensors/+/temperature": { qos: 0 } }));
  },
};

const agent = new Agent({ keepAlive: true, maxSockets: 4 });
function publish(topic, message) {
  const headers = { "Content-Type": "application/json" };
  const sent = request(`${data}/pub/${topic}`, { method: "POST", agent, headers }, (answer) => answer.resume());
  sent.on("error", () => {});
  sent.end(JSON.stringify(message));
}

const LINES = ["hello", "hello, bob", "who watches the match?", "the second half begins", "what a goal"];
let published = 0;
function publishOne() {
  const n = published++;
  if (n % 24 === 0) publish("chat/lobby", { name: ["ann", "bob", "cy"][(n / 24) % 3], text: LINES[(n / 24) % LINES.length] });
  else if (n % 9 === 0) publish("news/world", { n });
  else if (n % 3 === 0) publish(`sensors/room-${n % 7}/temperature`, 20 + (n % 30) / 10);
  else publish(SCORES[n % 2], { n, score: `${n % 4}:${n % 3}` });
}

/** Messages of a second: about twenty, and around a goal up to six times as many. */
const rate = (s) => 18 + 8 * Math.abs(Math.sin(s * 1.7)) + 100 * Math.exp(-(((s % 47) - 30) ** 2) / 10);

async function live() {
  const all = Object.entries(COUNTS).flatMap(([kind, count]) => Array.from({ length: count }, (_, n) => ({ at: (n / count) * 0.6 * seconds, open: () => clients[kind](n) })));
  all.sort((a, b) => a.at - b.at);
  const began = performance.now();
  for (;;) {
    const s = (performance.now() - began) / 1000;
    while (all.length > 0 && all[0].at <= s) all.shift().open();
    publishOne();
    await sleep((0.5 + Math.abs(Math.sin(published))) / rate(s) / 1.14);
  }
}

/** The page at `place`, once the text of the element `at` is `like` the expression. */
async function visit(browser, place, [width, height], colorScheme, at, like) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme });
  const page = await context.newPage();
  await page.goto(`http://127.0.0.1:${admin}/#${place}`);
  await page.locator(at).filter({ hasText: like }).first().waitFor();
  return page;
}

const WIDE = [1280, 900];
const PHONE = [390, 1180];
const save = (name) => ({ path: join(args.out, name) });

try {
  await sleep(1);
  void live();
  await sleep(seconds);
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", headless: true, args: ["--no-sandbox", "--disable-gpu"] });
  for (const [name, colors] of [
    ["overview.png", "light"],
    ["overview-dark.png", "dark"],
  ]) {
    const page = await visit(browser, "/", WIDE, colors, "[data-tile=p99] .value", "s");
    // The browser's own start is over, so that the second that is shown is one of the server's.
    await sleep(5);
    await page.screenshot(save(name));
    await page.context().close();
  }

  const connections = await visit(browser, "/connections", WIDE, "light", "tbody tr", "SSE");
  await connections.fill("input[name=filter]", "scores/#");
  await connections.click("form button[type=submit]");
  await connections.locator("tbody tr").filter({ hasText: "scores" }).first().waitFor();
  await sleep(1);
  await connections.screenshot(save("connections.png"));

  const settings = await visit(browser, "/settings", WIDE, "light", ".settings tbody tr", "listen");
  await settings.screenshot(save("settings.png"));

  // Two phones beside each other.
  const topic = await visit(browser, "/topic/chat%2Flobby", PHONE, "dark", ".tail .messages li", "text");
  const cards = await visit(browser, "/connections", PHONE, "dark", "tbody tr", "device-");
  const images = [await topic.screenshot(), await cards.screenshot()].map((png) => `<img src="data:image/png;base64,${png.toString("base64")}">`);
  const both = await (await browser.newContext({ viewport: { width: 800, height: 1180 } })).newPage();
  await both.setContent(`<body style="margin: 0; display: flex; justify-content: space-between; background: #808080">${images.join("")}</body>`);
  await both.screenshot(save("topic.png"));

  await connections.fill("input[name=filter]", "alerts/#");
  await connections.click("form button[type=submit]");
  await connections.locator("tbody tr").filter({ hasText: "device-" }).first().waitFor();
  await connections.locator("tbody a").first().click();
  await connections.locator(".connection table").filter({ hasText: "workers" }).waitFor();
  await connections.setViewportSize({ width: 1280, height: 560 });
  await connections.screenshot(save("connection.png"));
  await browser.close();
} finally {
  server.kill();
  rmSync(directory, { recursive: true, force: true });
}
// The clients would try again for ever.
process.exit();
