// Pages of examples/pusher-chat in headless Chromium, one for each user: the page's address and the users in, JSON lines out. {"type": text, "by": user},
// {"send": true, "by": user}, {"close": user} and {"await": text, "in": selector, "by": user} on its input are done one after another.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { chromium } = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("playwright-core");
const say = (what) => console.log(JSON.stringify(what));

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const [address, ...users] = process.argv.slice(2);
const pages = new Map();
for (const user of users) {
  const page = await browser.newPage();
  page.on("console", (line) => console.error(user, line.text()));
  await page.goto(`${address}/#${user}`);
  pages.set(user, page);
}
say({ kind: "ready" });

const input = createInterface({ input: process.stdin });
for await (const line of input) {
  const command = JSON.parse(line);
  const page = pages.get(command.by ?? command.close);
  if ("type" in command) await page.fill("#text", command.type);
  if ("send" in command) await page.click("button");
  if ("close" in command) await page.close();
  if ("await" in command) {
    const has = ([selector, text]) => document.querySelector(selector).textContent === text;
    await page.waitForFunction(has, [command.in, command.await], { timeout: 30_000 });
    say({ kind: "shown", by: command.by });
  }
}
await browser.close();
