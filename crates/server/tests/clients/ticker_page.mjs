// Headless Chromium with centrifuge-js on a page of tickers: the page's URL and the address of the server in, JSON commands on its input, JSON lines out. {"show": channels} are the tickers that
// the user sees: the page unsubscribes from the others. {"reload": true} loads the page anew, and {"report": true} asks for all that came. As a page that must lose nothing, it keeps the position
// and the messages of each ticker in one place, which survives a reload, and recovers from there.
import { createRequire } from "node:module";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const require = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`);
const { chromium } = require("playwright-core");
const library = join(process.env.CRORE_CLIENT_TESTS, "node_modules/centrifuge/dist/centrifuge.js");
const say = (what) => console.log(JSON.stringify(what));
const [url, address] = process.argv.slice(2);

const profile = mkdtempSync(join(tmpdir(), "crore-tickers-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const page = context.pages()[0] ?? (await context.newPage());
await page.exposeFunction("say", say);

/** Runs in the page. */
function begin(address) {
  const stored = (name) => JSON.parse(sessionStorage.getItem(name) ?? "{}");
  const [positions, messages] = [stored("positions"), stored("messages")];
  const keep = () => {
    sessionStorage.setItem("positions", JSON.stringify(positions));
    sessionStorage.setItem("messages", JSON.stringify(messages));
  };
  const client = new Centrifuge(`ws://${address}/connection/websocket`, { minReconnectDelay: 50, maxReconnectDelay: 200 });
  client.on("connecting", ({ code }) => say({ kind: "connecting", code }));
  client.on("disconnected", ({ code, reason }) => say({ kind: "error", code, reason }));
  const subscribe = (channel) => {
    const subscription = client.newSubscription(channel, { since: positions[channel], minResubscribeDelay: 50 });
    subscription.on("subscribed", ({ streamPosition, wasRecovering, recovered }) => {
      if (wasRecovering && !recovered) say({ kind: "error", lost: channel });
      positions[channel] = streamPosition;
      keep();
      const all = Object.values(client.subscriptions());
      if (all.every(({ state }) => state === "subscribed")) say({ kind: "shown", count: all.length });
    });
    subscription.on("publication", ({ data, offset }) => {
      (messages[channel] ??= []).push(data);
      positions[channel] = { epoch: positions[channel].epoch, offset };
      keep();
    });
    subscription.subscribe();
  };
  window.show = (channels) => {
    for (const [channel, subscription] of Object.entries(client.subscriptions())) {
      if (channels.includes(channel)) continue;
      subscription.unsubscribe();
      client.removeSubscription(subscription);
    }
    channels.filter((channel) => !client.getSubscription(channel)).forEach(subscribe);
  };
  window.messages = messages;
  client.connect();
}

const load = async () => {
  await page.addScriptTag({ path: library });
  await page.evaluate(begin, address);
};
let shown = [];
const input = createInterface({ input: process.stdin });
input.on("close", async () => {
  await context.close();
  rmSync(profile, { recursive: true, force: true });
  process.exit(0);
});
await page.goto(url);
await load();
say({ kind: "ready" });
for await (const line of input) {
  const command = JSON.parse(line);
  if (command.reload) {
    await page.reload();
    await load();
  }
  shown = command.show ?? shown;
  if (command.report) say({ kind: "report", messages: await page.evaluate(() => window.messages) });
  else await page.evaluate((channels) => window.show(channels), shown);
}
