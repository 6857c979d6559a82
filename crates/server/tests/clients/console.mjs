// Headless Chromium for the console: JSON commands on its input, a JSON line for the answer of each. Where a name has to lead
// elsewhere, the first argument says so: MAP admin.test:80 127.0.0.1:12345. Others are the browser's own.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { chromium } = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("playwright-core");
const say = (what) => console.log(JSON.stringify(what));
const PATIENCE_MS = 30_000;

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: [
    "--no-sandbox", // the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    `--host-resolver-rules=${process.argv[2] ?? ""}`,
    ...process.argv.slice(3),
  ],
});

let page;
/** What the browser complains of: errors of scripts, refusals by the page's policy, failed requests. */
let complaints = [];

const actions = {
  /** A new page: `size` [width, height], `colors` "light" or "dark", `clock` whether `later` turns its clock. */
  async open({ url, size = [1280, 900], colors = "light", clock = false }) {
    await page?.context().close();
    complaints = [];
    const context = await browser.newContext({ viewport: { width: size[0], height: size[1] }, colorScheme: colors });
    page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
    page.on("pageerror", (error) => complaints.push(error.message));
    if (clock) await page.clock.install();
    await page.goto(url);
  },
  /** Turns the page's clock: all its timers fire that are due by then. A request of its own comes back behind those that they make. */
  async later({ ms }) {
    await page.clock.runFor(ms);
    await page.evaluate(() => fetch("healthz"));
  },
  /** Waits until the element's text matches. */
  async expect({ at, like }) {
    const element = page.locator(at).first();
    const wanted = new RegExp(like);
    const until = Date.now() + PATIENCE_MS;
    for (;;) {
      const text = (await element.count()) > 0 ? await element.textContent() : null;
      if (text !== null && wanted.test(text)) return text;
      if (Date.now() > until) throw new Error(`${at} is ${JSON.stringify(text)}, not like ${like}`);
      await page.waitForTimeout(50);
    }
  },
  async texts({ at }) {
    return page.locator(at).allTextContents();
  },
  async fill({ at, text }) {
    await page.fill(at, text);
  },
  async select({ at, value }) {
    await page.selectOption(at, value);
  },
  async click({ at }) {
    await page.click(at);
  },
  async press({ keys }) {
    await page.keyboard.press(keys);
  },
  /** What a browser says to a page when its tab is put behind another one, and when it is brought back. */
  async hide({ hidden }) {
    await page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, value: hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  },
  async reload() {
    await page.reload();
  },
  async shot({ path }) {
    await page.screenshot({ path, fullPage: true });
  },
  /** The strong colours of a canvas, as hues in steps of 30 degrees: a line's own colour, without its blurred edges and the greys of the axes. */
  async colors({ at }) {
    return page.evaluate((at) => {
      const canvas = document.querySelector(at);
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const hues = new Set();
      for (let i = 0; i < data.length; i += 4) {
        const [r, g, b, a] = data.slice(i, i + 4);
        const [most, least] = [Math.max(r, g, b), Math.min(r, g, b)];
        if (a < 250 || most - least < 90) continue;
        const turn = most === r ? (g - b) / (most - least) : most === g ? 2 + (b - r) / (most - least) : 4 + (r - g) / (most - least);
        hues.add(Math.round(((turn * 60 + 360) % 360) / 30) % 12);
      }
      return [...hues];
    }, at);
  },
  /** How many pixels of an element are out of sight at its right. */
  async hidden({ at }) {
    return page.evaluate((at) => document.querySelector(at).scrollWidth - document.querySelector(at).clientWidth, at);
  },
  async complaints() {
    return complaints;
  },
  /** What a person who does not see, or who has a narrow screen, would run into. */
  async manners() {
    return page.evaluate(() => {
      const nameless = [...document.querySelectorAll("button, a, input, textarea, [role=region], [role=img], [role=meter]")].filter(
        (element) => {
          const label = element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent ?? element.textContent;
          return label.trim() === "";
        },
      );
      // Words that a line ends within. What publishers send is broken anywhere.
      const broken = [];
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) {
        if (node.parentElement.closest("pre, script, textarea") !== null) continue;
        for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
          const range = document.createRange();
          range.setStart(node, index);
          range.setEnd(node, index + word.length);
          if (new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1) broken.push(word);
        }
      }
      // The name before a cell of a card: no range reaches it, and one that may shrink is broken.
      for (const cell of document.querySelectorAll("td[data-name]")) {
        const { content, display, flexShrink } = getComputedStyle(cell, "::before");
        const shown = content !== "none" && content !== '""' && display !== "none" && cell.getClientRects().length > 0;
        if (shown && flexShrink !== "0") broken.push(cell.dataset.name);
      }
      return {
        broken,
        nameless: nameless.map((element) => element.outerHTML),
        overflow_px: document.documentElement.scrollWidth - innerWidth,
        background: getComputedStyle(document.body).backgroundColor,
        address: location.href,
        focus: document.activeElement?.textContent,
        kept: JSON.stringify({ ...localStorage }),
        title: document.title,
      };
    });
  },
};

const input = createInterface({ input: process.stdin });
input.on("close", async () => {
  await browser.close();
  process.exit(0);
});
say({ kind: "ready" });
for await (const line of input) {
  const command = JSON.parse(line);
  try {
    say({ kind: "done", value: (await actions[command.do](command)) ?? null });
  } catch (error) {
    say({ kind: "error", doing: command, error: String(error) });
  }
}
