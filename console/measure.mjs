// `cargo xtask console --measure`: a server with many connections, and what a console costs it.
//
//   first paint    from the navigation to the browser's first contentful paint, and to the number of connections on the page,
//                  in a new browser context (nothing cached) each time
//   cost           the server's CPU, per second, in turns without and with a console open, while messages are published
//
// The last line is one JSON object. Chromium's own work is on the same cores and is no part of the server's time.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { readFileSync, writeFileSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { cpus, totalmem, release, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

const { values: args } = parseArgs({
  options: {
    program: { type: "string" },
    connections: { type: "string", default: "100000" },
    rate: { type: "string", default: "2000" },
    seconds: { type: "string", default: "4" },
    rounds: { type: "string", default: "4" },
    json: { type: "string" },
  },
});
const connections = Number(args.connections);
const seconds = Number(args.seconds);
const rounds = Number(args.rounds);

const { chromium } = createRequire(`${process.env.CRORE_CLIENT_TESTS}/package.json`)("playwright-core");
const sleep = (s) => new Promise((done) => setTimeout(done, s * 1000));
const bench = join(dirname(args.program), "crore-bench");
const children = [];
const start = (program, argv, stdio) => {
  const child = spawn(program, argv, { stdio });
  children.push(child);
  return child;
};
const freePort = () =>
  new Promise((done) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });

/** User and system time of a process in seconds; the kernel counts in hundredths. */
function cpu_s(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

async function busy(pid, s) {
  const [from_s, from_ms] = [cpu_s(pid), performance.now()];
  await sleep(s);
  return (cpu_s(pid) - from_s) / ((performance.now() - from_ms) / 1000);
}

async function visit(browser, url, until) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  await page.goto(url);
  await page.waitForFunction(
    (least) => Number(document.querySelector("[data-tile=connections] .value")?.textContent.replaceAll(",", "")) >= least,
    until,
    { polling: "raf" },
  );
  const times = await page.evaluate(() => ({
    first_paint_ms: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
    number_ms: performance.now(),
  }));
  return { page, context, times };
}

const round = (value, digits) => Number(value.toFixed(digits));
const sorted = (list) => [...list].sort((a, b) => a - b);
const median = (list) => sorted(list)[Math.floor(list.length / 2)];

const directory = mkdtempSync(join(tmpdir(), "crore-measure-"));
try {
  const [port, admin] = [await freePort(), await freePort()];
  const file = join(directory, "crore.toml");
  writeFileSync(file, "[limits]\naccepts_per_s = 50000\n");
  const shards = Math.max(2, Math.ceil(connections / 18_000));
  const server = start(
    args.program,
    ["--log", "warn", "serve", "--listen", `127.0.0.1:${port}`, "--admin-listen", `127.0.0.1:${admin}`, "--shards", String(shards), "--config", file],
    ["ignore", "ignore", "inherit"],
  );
  await sleep(1);
  const topics = `/c/{1..${connections}}`;
  const at = ["--server", `127.0.0.1:${port}`, "--topics", topics];
  const local = `127.0.{1..${Math.min(250, Math.ceil(connections / 10_000))}}.1`;
  const tool = start(bench, ["subscribe", "--control", "--connections", String(connections), "--local", local, ...at], ["pipe", "pipe", "inherit"]);
  const answers = createInterface({ input: tool.stdout })[Symbol.asyncIterator]();
  for (const word of ["open", "settle"]) {
    tool.stdin.write(`${word}\n`);
    await answers.next();
  }
  console.error(`${connections} connections are open`);

  const url = `http://127.0.0.1:${admin}/`;
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", headless: true, args: ["--no-sandbox", "--disable-gpu"] });
  const paints = [];
  for (let i = 0; i < 5; i++) {
    const { context, times } = await visit(browser, url, connections);
    await context.close();
    paints.push(times);
  }

  start(bench, ["publish", "--rate", args.rate, "--quiet", ...at], ["ignore", "ignore", "inherit"]);
  await sleep(1);
  const without = [];
  const beside = [];
  for (let i = 0; i < rounds; i++) {
    without.push(await busy(server.pid, seconds));
    const { context } = await visit(browser, url, connections);
    beside.push(await busy(server.pid, seconds));
    await context.close();
  }
  const result = {
    what: "the console's cost to the server",
    connections,
    shards,
    publishes_per_s: Number(args.rate),
    first_paint_ms: { median: round(median(paints.map((p) => p.first_paint_ms)), 0), all: paints.map((p) => round(p.first_paint_ms, 0)) },
    number_ms: { median: round(median(paints.map((p) => p.number_ms)), 0), all: paints.map((p) => round(p.number_ms, 0)) },
    server_cores: {
      without: { median: round(median(without), 4), all: without.map((x) => round(x, 4)) },
      with_one_console: { median: round(median(beside), 4), all: beside.map((x) => round(x, 4)) },
      more_by: round(median(beside) - median(without), 4),
    },
    seconds_each: seconds,
    machine: { cpus: cpus().length, cpu: cpus()[0].model, memory_bytes: totalmem(), kernel: release(), browser: browser.version() },
  };
  await browser.close();
  if (args.json) writeFileSync(args.json, `${JSON.stringify(result, null, 2)}\n`);
  console.log(JSON.stringify(result));
} finally {
  for (const child of children) child.kill();
  rmSync(directory, { recursive: true, force: true });
}
