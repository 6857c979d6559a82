// Runs test/*.test.ts: bundles each for Node, which knows no TypeScript, and hands them to its test runner.
import { build } from "esbuild";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "node:test";

const out = await mkdtemp(join(tmpdir(), "crore-console-"));
const names = (await readdir("test")).filter((name) => name.endsWith(".test.ts"));
await build({
  entryPoints: names.map((name) => join("test", name)),
  outdir: out,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  logLevel: "warning",
});
let failed = 0;
const tests = run({ files: names.map((name) => join(out, name.replace(/\.ts$/, ".mjs"))) });
tests.on("test:fail", ({ name, details }) => {
  failed += 1;
  console.error(`failed: ${name}\n${details.error}`);
});
for await (const _ of tests);
await rm(out, { recursive: true });
process.exit(failed === 0 ? 0 : 1);
