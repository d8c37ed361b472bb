// Opens pages in a browser and prints what is wrong with them; tools/site_check.py calls it.
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname } from "node:path";

const [out, executablePath, address, searched, ...pages] = process.argv.slice(2);
const require = createRequire(`${out}/node_modules/`);
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core");

const WIDTHS = [1280, 390];
const SCHEMES = ["light", "dark"];
const problems = [];

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
for (const width of WIDTHS) {
  for (const colorScheme of SCHEMES) {
    await visit(width, colorScheme);
  }
}
await browser.close();
console.log(problems.join("\n") || `${pages.length} pages are good`);
process.exit(problems.length ? 1 : 0);

async function visit(width, colorScheme) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  let place = "";
  const tell = (sentence) => problems.push(`${place} (${width} px, ${colorScheme}): ${sentence}`);
  page.on("console", (message) => message.type() === "error" && tell(`console: ${message.text()}`));
  page.on("pageerror", (error) => tell(`error: ${error.message}`));
  page.on("requestfailed", (request) => {
    // A request that the next page cuts short is no failure.
    const { errorText } = request.failure();
    if (errorText !== "net::ERR_ABORTED") tell(`request failed: ${request.url()}: ${errorText}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(address) && !request.url().startsWith("data:")) tell(`asks for ${request.url()}`);
  });
  for (place of pages) {
    await page.goto(address + place, { waitUntil: "load" });
    if (place === "index.html") {
      await page.waitForURL("**/docs/index.html"); // it leads there at once
      continue;
    }
    await look(page, tell);
    const shot = `${out}/${width}-${colorScheme}/${place.replace(/\.html$/, ".png")}`;
    mkdirSync(dirname(shot), { recursive: true });
    await page.screenshot({ path: shot, fullPage: true });
  }
  place = `search.html?q=${searched}`;
  await page.goto(address + place);
  await page.waitForSelector("#search-results li", { timeout: 20000 }).catch(() => tell("no result"));
  await look(page, tell);
  const theme = () => page.evaluate(() => document.body.dataset.theme);
  const before = await theme();
  await page.locator("button.theme-toggle:visible").first().click();
  if ((await theme()) === before) tell("the button for dark mode does nothing");
  await context.close();
}

async function look(page, tell) {
  const [is, may] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  if (is > may) tell(`is ${is} px wide`);
  await page.addScriptTag({ path: axe });
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const { id, help, nodes } of violations) {
    const [{ target, failureSummary }] = nodes;
    tell(`${id}: ${help}: ${nodes.length} times, first ${target}: ${failureSummary.split("\n")[1]?.trim()}`);
  }
}
