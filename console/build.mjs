// Bundles src/ into the directory named by the first argument: three files and nothing that names this machine.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { join } from "node:path";

const [out = "../crates/server/src/control/console"] = process.argv.slice(2);
await mkdir(out, { recursive: true });
await build({
  entryPoints: [{ in: "src/main.tsx", out: "console" }],
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "inline", // the licences of what is bundled ask for their notice
  logLevel: "warning",
});
for (const file of ["index.html", "icon.svg"]) {
  await copyFile(join("src", file), join(out, file));
}
