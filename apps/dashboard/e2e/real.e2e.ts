// The page against a whole Windlass. The test that starts it gives
//
//   WINDLASS_DASHBOARD_LINK    a link that signs in, of an owner's key
//   WINDLASS_CLI               the program windlass, with HOME of the dev's context
//   WINDLASS_EXAMPLES          folder with echo.yaml and echo-canary.yaml
//   WINDLASS_AGENT_PID         process id of the agent of eu-west-1, which windlass dev starts again
import { execFileSync } from "node:child_process";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, it } from "vitest";
import { complaints, contextOf, inspect, launch, looks } from "./browser.js";

const need = (name: string): string => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is missing: apps/e2e runs this`);
  return value;
};

const patience = { timeout: 60_000 };
let browser: Browser;
beforeAll(async () => void (browser = await launch()));
afterAll(async () => browser?.close());

it("shows a fleet as it is, and steers a rollout", async () => {
  const link = need("WINDLASS_DASHBOARD_LINK");
  const windlass = (...args: string[]) => execFileSync(need("WINDLASS_CLI"), args, { stdio: "pipe", cwd: need("WINDLASS_EXAMPLES") });
  const context = await contextOf(browser, looks[0]!);
  const page = await context.newPage();
  const found = complaints(page);

  // Signed in by the link, which is neither in the address any more nor good again.
  await page.goto(link);
  await page.getByRole("heading", { name: "Fleet" }).waitFor(patience);
  expect(page.url()).not.toContain("link=");
  const region = page.getByRole("article", { name: "eu-west-1" });
  await region.getByText("connected").waitFor(patience);
  const cookies = await context.cookies();
  expect(cookies.map((c) => [c.name, c.httpOnly, c.sameSite])).toEqual([["windlass_session", true, "Strict"]]);
  const storage = await page.evaluate(() => JSON.stringify([localStorage, sessionStorage, document.cookie]));
  expect(storage).not.toMatch(/wl[sl]?_/);
  const again = await (await contextOf(browser, looks[0]!)).newPage();
  await again.goto(link);
  await again.getByText("The link was used or has expired").waitFor(patience);
  await again.context().close();
  await inspect(page, "real-fleet");

  // The empty list shows the commands; the page sees what they do.
  await page.getByRole("link", { name: "Apps", exact: true }).click();
  await page.getByText("windlass deploy -f app.yaml").waitFor(patience);
  windlass("deploy", "-f", "echo.yaml", "--wait=false");
  const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: "echo", exact: true }) });
  await row.getByText("ready", { exact: true }).waitFor(patience);
  await inspect(page, "real-apps");
  await row.getByRole("link").click();
  await page.getByRole("heading", { name: "echo" }).waitFor(patience);
  await page.getByRole("row").filter({ hasText: "us-east-1 replica" }).first().getByText("ready", { exact: true }).waitFor(patience);
  await inspect(page, "real-app");
  const tabs = page.getByRole("navigation", { name: "Pages of echo" });
  await tabs.getByRole("link", { name: "Logs" }).click();
  await page.getByText("windlass logs -f default/production/echo").waitFor(patience);
  await page.getByRole("log", { name: "Output" }).getByRole("button", { name: /^v1 us-east-1 main/ }).first().waitFor(patience);
  await inspect(page, "real-logs");
  await tabs.getByRole("link", { name: "Load" }).click();
  await page.getByRole("img", { name: /^Requests a second in the last hour/ }).waitFor(patience);
  await page.getByRole("img", { name: /^Replicas in the last hour/ }).waitFor(patience);
  await page.getByRole("row", { name: /us-east-1 .*([1-9]) of \1/ }).waitFor(patience);
  await inspect(page, "real-load");
  await tabs.getByRole("link", { name: "Chat" }).click();
  await page.getByLabel("Question").fill("hello brave new world");
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByText(/^first token after/).waitFor(patience);
  expect(await page.getByRole("log", { name: "Conversation" }).getByText("hello brave new world").count()).toBe(2);
  await inspect(page, "real-chat");
  await tabs.getByRole("link", { name: "Overview" }).click();

  // An update, held and let go.
  windlass("deploy", "-f", "echo-canary.yaml", "--wait=false");
  await page.getByRole("link", { name: "v1 → v2" }).click(patience);
  await page.getByText("until v2 is promoted").first().waitFor(patience);
  await inspect(page, "real-rollout");
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByLabel("Why, for the history (optional)").fill("lunch first");
  await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
  await page.getByText("lunch first").first().waitFor(patience);
  await page.getByRole("button", { name: "Resume" }).click(patience);
  await page.getByRole("dialog").getByRole("button", { name: "Resume" }).click();
  await page.getByRole("button", { name: "Promote in full" }).click(patience);
  await page.getByRole("dialog").getByRole("button", { name: "Promote in full" }).click();
  await page.getByRole("heading", { name: "Where it is" }).waitFor();
  await page.getByText("succeeded", { exact: true }).waitFor(patience);

  // A region goes and returns.
  await page.getByRole("link", { name: "Fleet" }).click();
  const pid = Number(need("WINDLASS_AGENT_PID"));
  process.kill(pid, "SIGSTOP");
  try {
    await region.getByText("unreachable", { exact: true }).waitFor(patience);
    await region.getByText("Instances there keep running").waitFor();
    await inspect(page, "real-unreachable");
  } finally {
    process.kill(pid, "SIGCONT");
  }
  await region.getByText("connected").waitFor(patience);

  await page.getByRole("button", { name: /^Account/ }).click();
  await page.getByRole("menuitem", { name: "Sign out everywhere" }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor(patience);
  expect(found).toEqual([]);
});
