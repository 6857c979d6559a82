// Runs specs for Jasmine in headless Chromium. The page's URL and the file with the specs in; for each spec a JSON line out.
import { createRequire } from "node:module";
import { dirname } from "node:path";

const tools = process.env.CRORE_CLIENT_TESTS;
const { chromium } = createRequire(`${tools}/package.json`)("playwright-core");
const suite = createRequire(`${tools}/pusher-js/package.json`);
const jasmine = dirname(createRequire(suite.resolve("jasmine")).resolve("jasmine-core"));
const [url, specs] = process.argv.slice(2);

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
});
// The specs have no place for the root certificate of the test.
// The page is an error of the backend, whose policy forbids scripts.
const page = await browser.newPage({ ignoreHTTPSErrors: true, bypassCSP: true });
let done;
const ended = new Promise((resolve) => (done = resolve));
await page.exposeFunction("say", (what) => console.log(JSON.stringify(what)));
await page.exposeFunction("ended", () => done());
page.on("pageerror", (error) => console.error(error));
await page.goto(url);
for (const file of ["jasmine.js", "jasmine-html.js", "boot0.js"]) await page.addScriptTag({ path: `${jasmine}/jasmine-core/${file}` });
await page.evaluate(() => {
  const env = window.jasmine.getEnv();
  env.configure({ random: false });
  env.addReporter({
    specDone({ fullName, status, failedExpectations }) {
      window.say({ name: fullName, status, why: failedExpectations.map((it) => it.message) });
    },
    jasmineDone: () => window.ended(),
  });
});
await page.addScriptTag({ path: specs });
await page.evaluate(() => void window.jasmine.getEnv().execute());
await ended;
await browser.close();
