// Sign-ins at a real issuer, in the page and for the command line. The test that starts it gives
//
//   WINDLASS_ORIGIN      the control plane, which has the issuer
//   WINDLASS_ISSUER      npm's oidc-provider, which accepts every login
//   WINDLASS_CLI         the program windlass, with WINDLASS_CONFIG of an empty file
import { execFileSync, spawn } from "node:child_process";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, it } from "vitest";
import { complaints, contextOf, inspect, launch, looks } from "./browser.js";

const need = (name: string): string => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is missing: apps/e2e runs this`);
  return value;
};
const server = need("WINDLASS_ORIGIN");
const issuer = need("WINDLASS_ISSUER");

const patience = { timeout: 60_000 };
let browser: Browser;
beforeAll(async () => void (browser = await launch()));
afterAll(async () => browser?.close());

/** Fills in what the issuer asks, until the browser is back at the control plane. */
async function signInAtIssuer(page: Page): Promise<void> {
  for (let asked = 0; asked < 4; asked++) {
    await page.waitForLoadState();
    if (!page.url().startsWith(issuer)) return;
    const login = page.locator("input[name=login]");
    if ((await login.count()) > 0) {
      await login.fill("ada");
      await page.locator("input[name=password]").fill("any");
    }
    const before = page.url();
    await page.locator("button[type=submit]").click();
    await page.waitForURL((url) => url.href !== before, patience);
  }
}

type Login = { url: string; code: string; ended: Promise<{ exit: number | null; said: string }> };

/** Runs `windlass login --sso` until it shows its address and its code. */
function login(): Promise<Login> {
  const command = spawn(need("WINDLASS_CLI"), ["login", "--server", server, "--sso"], { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  const ended = new Promise<{ exit: number | null; said: string }>((resolve) => command.on("close", (exit) => resolve({ exit, said })));
  return new Promise((resolve, reject) => {
    const hear = (data: Buffer) => {
      said += data.toString();
      const shown = /^(https?:\/\/\S+)\n.*shows the code ([A-Z2-7]{4}-[A-Z2-7]{4})\./m.exec(said);
      if (shown) resolve({ url: shown[1]!, code: shown[2]!, ended });
    };
    command.stdout.on("data", hear);
    command.stderr.on("data", hear);
    void ended.then((e) => reject(new Error(`windlass login ended: ${e.said}`)));
  });
}

const whoami = () => execFileSync(need("WINDLASS_CLI"), ["whoami"], { stdio: "pipe", encoding: "utf8" });

it("a person signs in at the issuer, in the page and for the command line, and signs out of all", async () => {
  const context = await contextOf(browser, looks[0]!);
  const page = await context.newPage();
  const found = complaints(page, [/401/, /Failed to load resource/, /ERR_/]);
  await page.goto(`${server}/ui/members`);
  await page.getByRole("heading", { name: "Sign in" }).waitFor(patience);
  const button = page.getByRole("link", { name: "Sign in with single sign-on" });
  await button.click(patience);
  await page.waitForURL((url) => url.href.startsWith(issuer), patience);
  await signInAtIssuer(page);

  // Back at the page that was asked for, as the person, with the role that the rule gives.
  await page.getByRole("button", { name: "Account: ada@example.com" }).click(patience);
  expect(new URL(page.url()).pathname).toBe("/ui/members");
  await page.getByText("Member ada@example.com, deployer").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("row", { name: /ada@example\.com.*deployer/ }).waitFor(patience);
  const cookies = (await context.cookies(server)).filter((c) => c.name.includes("windlass"));
  expect(cookies.map((c) => [c.name.replace("__Host-", ""), c.httpOnly, c.sameSite, c.secure])).toEqual([["windlass_session", true, "Strict", server.startsWith("https")]]);

  // It signs out here alone: the issuer still knows the person, and asks for nothing.
  await page.getByRole("button", { name: /^Account/ }).click();
  await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor(patience);
  expect((await context.cookies(server)).filter((c) => c.name.includes("windlass"))).toEqual([]);
  await page.reload();
  await button.click(patience);
  await signInAtIssuer(page);
  await page.getByRole("button", { name: "Account: ada@example.com" }).waitFor(patience);

  // The command line: a page shows the command's code, and asks.
  const tab = await context.newPage();
  const complained = complaints(tab, [/favicon/, /Failed to load resource/]);
  const refused = await login();
  await tab.goto(refused.url);
  await signInAtIssuer(tab);
  await tab.getByRole("heading", { name: "Sign in the command line?" }).waitFor(patience);
  await tab.getByText(refused.code).waitFor();
  await tab.getByText("ada@example.com").waitFor();
  await inspect(tab, "confirm-login");
  await tab.getByRole("link", { name: "Decline" }).click();
  await tab.getByText("The sign-in was refused. The terminal says why.").waitFor(patience);
  const declined = await refused.ended;
  expect(declined.exit).not.toBe(0);
  expect(declined.said).toContain("The sign-in was declined in the browser.");
  expect(whoami).toThrow();

  const accepted = await login();
  expect(accepted.code).not.toBe(refused.code);
  await tab.goto(accepted.url);
  await signInAtIssuer(tab);
  await tab.getByText(accepted.code).waitFor(patience);
  await tab.getByRole("link", { name: "Sign in the command line" }).click();
  await tab.getByText("You are signed in. Go back to the terminal").waitFor(patience);
  expect((await accepted.ended).exit).toBe(0);
  expect(whoami()).toContain("ada@example.com");
  expect(complained).toEqual([]);
  await tab.close();

  // Another browser of the person, and the command line, end with "Sign out everywhere".
  const elsewhere = await contextOf(browser, looks[2]!);
  const phone = await elsewhere.newPage();
  await phone.goto(`${server}/ui/fleet`);
  await phone.getByRole("link", { name: "Sign in with single sign-on" }).click(patience);
  await signInAtIssuer(phone);
  await phone.getByRole("heading", { name: "Fleet" }).waitFor(patience);
  await page.getByRole("button", { name: /^Account/ }).click();
  await page.getByRole("menuitem", { name: "Sign out everywhere" }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor(patience);
  await phone.getByRole("heading", { name: "Sign in" }).waitFor(patience);
  expect(whoami).toThrow();
  expect(found).toEqual([]);
});
