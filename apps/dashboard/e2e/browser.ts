// What the tests in a browser share: Chromium, screenshots and the check for accessibility.
import { AxeBuilder } from "@axe-core/playwright";
import { existsSync, mkdirSync } from "node:fs";
import path from "node:path";
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";
import { expect } from "vitest";

const places = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
export const program = process.env.WINDLASS_CHROMIUM ?? places.find((p) => existsSync(p));

/** Folder for screenshots; empty: none are made. */
const shots = process.env.WINDLASS_SCREENSHOTS ?? "";

export async function launch(): Promise<Browser> {
  if (!program) throw new Error("no Chromium: install it, or name it with WINDLASS_CHROMIUM");
  return chromium.launch({ executablePath: program, args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
}

export type Look = { name: string; width: number; height: number; scheme: "light" | "dark" };
export const looks: Look[] = [1440, 390].flatMap((width) =>
  (["light", "dark"] as const).map((scheme) => ({ name: `${width}-${scheme}`, width, height: width === 390 ? 844 : 900, scheme })),
);

export const contextOf = (browser: Browser, look: Look): Promise<BrowserContext> =>
  browser.newContext({ viewport: { width: look.width, height: look.height }, colorScheme: look.scheme, reducedMotion: "reduce", ignoreHTTPSErrors: true });

/** What the page complains about: broken rules of its Content-Security-Policy, and errors of scripts. */
export function complaints(page: Page, expected: RegExp[] = []): string[] {
  const found: string[] = [];
  const note = (text: string) => {
    if (!expected.some((e) => e.test(text))) found.push(text);
  };
  page.on("console", (m) => {
    if (m.type() === "error" || /Content.Security.Policy|Trusted/i.test(m.text())) note(m.text());
  });
  page.on("pageerror", (e) => note(String(e)));
  return found;
}

/** Finds nothing that keeps people out, and nothing that is wider than the screen; makes a screenshot. */
export async function inspect(page: Page, name: string): Promise<void> {
  if (shots) {
    mkdirSync(shots, { recursive: true });
    await page.screenshot({ path: path.join(shots, `${name}.png`), fullPage: true });
  }
  // The page forbids what it did not bring, so axe runs in a world of its own.
  const { violations } = await new AxeBuilder({ page }).setLegacyMode(true).analyze();
  expect(
    violations.map((v) => `${name}: ${v.id}: ${v.nodes.map((n) => `${n.target.join(" ")} ${n.failureSummary ?? ""}`).join("; ")}`),
  ).toEqual([]);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  expect(wide, `${name} is wider than the screen`).toBe(0);
}
