import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { Feature } from "../src/gen/windlass/v1/workspace_pb.js";
import { complaints, contextOf, inspect, launch, looks } from "./browser.js";
import { Fake, FakeApp, Refusal, type Scene } from "./fake.js";
import { empty, file, full, grouped, hostile, many, owned, platform, pooled, pooledFile, pooledPlan, worldwide } from "./scenes.js";

let browser: Browser;
beforeAll(async () => void (browser = await launch()));
afterAll(async () => browser?.close());

const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const c of cleanups.splice(0).reverse()) await c();
});

async function open(scene: Scene, path: string, look = looks[0]!): Promise<{ page: Page; fake: Fake; found: string[] }> {
  const fake = await new Fake(scene).start();
  const context = await contextOf(browser, look);
  cleanups.push(() => fake.stop(), () => context.close());
  const page = await context.newPage();
  const found = complaints(page, [/401/, /Failed to load resource/, /ERR_/]);
  await page.goto(fake.url + path);
  return { page, fake, found };
}

const app = "/ui/apps/default/production/chat";
const rollout = `${app}/rollouts/rol_1`;

describe.each(looks)("at $name", (look) => {
  it("every page can be used by everybody, and keeps to its Content-Security-Policy", async () => {
    const { page, fake, found } = await open(full, "/ui/", look);
    await page.getByRole("heading", { name: "Fleet" }).waitFor();
    await page.getByText("Its agent was last heard of").waitFor();
    await inspect(page, `fleet-${look.name}`);
    await page.getByRole("link", { name: "Apps", exact: true }).click();
    await page.getByRole("link", { name: "rerank" }).waitFor();
    await inspect(page, `apps-${look.name}`);
    await page.getByRole("link", { name: "chat" }).click();
    await page.getByText("CrashLoop").first().waitFor();
    await page.getByText("chat-v4-0-x7k2p").waitFor();
    await page.getByRole("row", { name: /us-east-1 4 wanted of 1 to 4 4 ready requests in flight 140.25 of 32 → 5 Quota: the workspace's quota has room for no more \(5 without the limit\)/ }).waitFor();
    await page.getByText("ann holds 6 replicas in eu-west-1").waitFor();
    await page.getByText("98.5 requests in flight are 3.1 times the target").waitFor();
    expect(await page.getByText("not about scaling").count()).toBe(0);
    await inspect(page, `app-${look.name}`);
    await page.getByRole("link", { name: "v4 → v5" }).click();
    await page.getByRole("heading", { name: "Why it waits" }).waitFor();
    await page.getByText("us-east-1 waits at step 2 of 3 until v5 is promoted.").waitFor();
    await inspect(page, `rollout-${look.name}`);
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("dialog").waitFor();
    await inspect(page, `confirm-${look.name}`);
    await page.getByLabel("Why, for the history (optional)").fill("lunch");
    await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
    await page.getByText("us-east-1 stays at step 1").waitFor();
    expect(fake.calls).toContain("PauseRollout");
    await page.getByRole("button", { name: /^Account/ }).click();
    await page.getByRole("menuitem", { name: "Sign out", exact: true }).waitFor();
    await inspect(page, `menu-${look.name}`);
    await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    await inspect(page, `sign-in-${look.name}`);
    expect(found).toEqual([]);
  });

  it("versions are compared, rolled back to and pinned", async () => {
    const { page, fake, found } = await open(full, app, look);
    await page.getByRole("link", { name: "Versions" }).click();
    await page.getByRole("row", { name: /v5/ }).first().waitFor();
    await page.getByRole("row", { name: /args\[3\]/ }).waitFor();
    await page.getByRole("row", { name: /HF_TOKEN.*hf-token, version 4.*hf-token, version 5/ }).waitFor();
    // Values of variables are not told.
    await page.getByRole("row", { name: /LOG_LEVEL.*value is not shown/ }).waitFor();
    expect(await page.getByText("debug", { exact: true }).count()).toBe(0);
    await page.getByText("launch-week").waitFor();
    expect(await page.getByText("elsewhere").count()).toBe(0);
    await inspect(page, `versions-${look.name}`);
    await page.getByRole("button", { name: "Compare v1" }).click();
    await page.getByRole("table", { name: "From v1 to v4" }).waitFor();
    expect(page.url()).toContain("from=1&to=4");
    expect(await page.evaluate(() => document.activeElement?.getAttribute("aria-labelledby"))).toBe("compare");
    await page.getByLabel("From", { exact: true }).selectOption("3");
    await page.getByRole("table", { name: "From v3 to v4" }).waitFor();

    expect(await page.getByRole("button", { name: /^Roll back to v[45]$/ }).count()).toBe(0);
    await page.getByRole("button", { name: "Roll back to v1" }).click();
    await page.getByRole("dialog").getByText("Approvals are waited for").waitFor();
    await page.getByLabel("Take the versions of secrets of then").check();
    await page.getByRole("dialog").getByText("Secrets go back to the versions that v1 ran with").waitFor();
    await inspect(page, `rollback-${look.name}`);
    await page.getByLabel("Why, for the history (optional)").fill("too slow");
    await page.getByRole("dialog").getByRole("button", { name: "Roll back to v1" }).click();
    await page.getByText("The app goes back to v1, as v6. us-east-1 has no GPU free for it now.").waitFor();
    expect(fake.requests.find((r) => r.procedure === "Rollback")?.request).toMatchObject({ app: "app_chat", version: 1, message: "too slow", withSteps: false, withSecrets: true });

    await page.getByRole("button", { name: "Pin v2" }).click();
    await page.getByLabel("Percent of the traffic").fill("25");
    await inspect(page, `pin-${look.name}`);
    await page.getByRole("dialog").getByRole("button", { name: "Pin v2" }).click();
    await page.getByText("v2 is pinned at 25 %").waitFor();
    await page.getByRole("button", { name: "Unpin v3" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Unpin v3" }).click();
    await page.getByText("v3 is pinned no longer").waitFor();
    expect(fake.requests.filter((r) => /Pin|Unpin/.test(r.procedure)).map((r) => r.request)).toMatchObject([{ version: 2, weight: 25, resourceVersion: 0n }, { version: 3, resourceVersion: 7n }]);
    expect(found).toEqual([]);
  });

  it("a file is planned, mended, and deployed from there", async () => {
    const { page, fake, found } = await open(full, "/ui/plan", look);
    await page.getByText("windlass plan -f app.yaml").waitFor();
    await inspect(page, `empty-plan-${look.name}`);
    const text = page.getByLabel("YAML or JSON");
    await text.fill(file.replace("replicas: 4", "replicas: many").replace("regions:", "regoins:"));
    await page.getByRole("button", { name: "Show the plan" }).click();
    await page.getByRole("alert").getByText("did you mean regions?").waitFor();
    await page.getByRole("alert").getByText("line 3:").waitFor();
    await inspect(page, `faults-${look.name}`);
    expect(fake.calls).not.toContain("PlanDeploy");
    await page.locator("input[type=file]").setInputFiles({ name: "app.yaml", mimeType: "text/yaml", buffer: Buffer.from(file) });
    await page.getByText("it would run").waitFor();
    await page.getByText("A rollout of v6 in place of v4. The rollout of v5, which is in flight, ends.").waitFor();
    await page.getByText("It waits 25m in all, besides the time that replicas take to load, 2 times in a row, and until people approve, 1 time.").waitFor();
    await page.getByText("4 moves more, one by one").waitFor();
    await page.getByRole("row", { name: /args\[1\].*chat-7b.*chat-8b/ }).waitFor();
    expect(await page.getByRole("table").getByText("debug").count()).toBe(0);
    await inspect(page, `plan-${look.name}`);
    expect(fake.requests.find((r) => r.procedure === "PlanDeploy")?.request).toMatchObject({
      app: "default/production/chat", spec: { replicas: 4, regions: ["us-east-1", "ap-south-1"], resources: { gpu: { count: 2 } } }, rollout: { steps: [{ weight: 5, pause: "5m" }, { pause: "manual" }] },
    });
    // What was planned is not what is in the field any more.
    await text.press("Control+End");
    await page.keyboard.type("# later");
    await page.getByText("The file is another one now").waitFor();
    expect(await page.getByRole("button", { name: "Deploy" }).isDisabled()).toBe(true);
    await page.keyboard.press("Control+Enter");
    await page.getByText("The file is another one now").waitFor({ state: "detached" });
    await page.getByRole("button", { name: "Deploy" }).click();
    await inspect(page, `deploy-${look.name}`);
    await page.getByRole("dialog").getByRole("button", { name: "Deploy" }).click();
    await page.getByText("v6 is on its way. Freeze launch-week holds it.").waitFor();
    await page.getByRole("heading", { name: "chat" }).waitFor();
    expect(fake.requests.find((r) => r.procedure === "Deploy")?.request).toMatchObject({ app: "default/production/chat", spec: { replicas: 4, env: { LOG_LEVEL: "debug" } } });
    expect(found).toEqual([]);
  });

  it("keys are created, shown once and revoked, and the audit is searched", async () => {
    const { page, fake, found } = await open(owned, "/ui/keys", look);
    await page.getByRole("row", { name: /wl_77b2/ }).waitFor();
    await inspect(page, `keys-${look.name}`);
    expect(await page.getByRole("button", { name: "Revoke old" }).count()).toBe(0);
    await page.getByRole("button", { name: "Create a key" }).click();
    await inspect(page, `new-key-${look.name}`);
    await page.getByLabel("Name").fill("Not A Name");
    await page.getByRole("button", { name: "Create the key" }).click();
    expect(fake.calls).not.toContain("CreateApiKey");
    await page.getByLabel("Name").fill("mobile");
    await page.getByLabel("Role").selectOption("deployer");
    await page.getByLabel("Good for").selectOption("for ever");
    await page.getByRole("button", { name: "Create the key" }).click();
    await page.getByText("wl_s3cr3t-value-of-the-key").waitFor();
    expect(fake.requests.find((r) => r.procedure === "CreateApiKey")?.request).toMatchObject({ name: "mobile", role: 2, expiresAt: 0n });
    await inspect(page, `made-key-${look.name}`);
    await page.getByRole("button", { name: "I have kept it" }).click();
    expect(await page.content()).not.toContain("s3cr3t");
    await page.getByRole("button", { name: "Revoke ci" }).click();
    await page.getByRole("dialog").getByText("sessions of browsers that it signed in end. It cannot be undone.").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke the key" }).click();
    await page.getByText("Key ci is revoked.").waitFor();
    expect(fake.requests.find((r) => r.procedure === "RevokeApiKey")?.request).toMatchObject({ key: "key_ci" });

    await page.getByRole("link", { name: "Audit" }).click();
    await page.getByText("refused (12 times)").waitFor();
    await page.getByText("What changed").first().click();
    await page.getByRole("table", { name: "From before to after" }).waitFor();
    await inspect(page, `audit-${look.name}`);
    await page.getByLabel("Call or resource").fill("createapikey");
    // It is on the second page, which is read by itself.
    await page.getByText("AccessService/CreateApiKey").waitFor();
    await page.getByText("1 of the newest 130").waitFor();
    expect(page.url()).toContain("call=createapikey");
    await page.getByLabel("Call or resource").fill("nothing-like-it");
    await page.getByText("No entry of the newest 130 is like that.").waitFor();
    await page.getByLabel("Call or resource").fill("");
    await page.getByLabel("Who").fill("ann");
    await page.getByLabel("Time").selectOption("the last hour");
    await page.getByText("3 of the newest").waitFor();
    expect(found).toEqual([]);
  });

  it("members are removed and restored, and rules added and removed", async () => {
    const { page, fake, found } = await open(owned, "/ui/members", look);
    await page.getByRole("row", { name: /ada@example.com/ }).getByText("deployer").waitFor();
    await page.getByText("no rule matches").waitFor();
    await page.getByText("People sign in at https://id.example.").waitFor();
    await inspect(page, `members-${look.name}`);
    await page.getByRole("button", { name: "Remove ada@example.com" }).click();
    await page.getByRole("dialog").getByText("All sessions of this member end at once").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Remove the member" }).click();
    await page.getByText("Keys that still work: adas-laptop.").waitFor();
    expect(fake.requests.find((r) => r.procedure === "RemoveMember")?.request).toMatchObject({ member: "mem_1" });
    await page.getByRole("button", { name: "Restore eve@example.com" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Restore the member" }).click();
    await page.getByText("eve@example.com is restored.").waitFor();

    await page.getByRole("button", { name: "Add a rule" }).click();
    await inspect(page, `new-rule-${look.name}`);
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Name").fill("ops");
    await dialog.getByLabel("Role").selectOption("owner");
    await dialog.getByLabel("Conditions").fill("groups");
    await dialog.getByRole("button", { name: "Add the rule" }).click();
    await dialog.getByRole("alert").getByText("is not claim=value").waitFor();
    await dialog.getByLabel("For").selectOption("https://gitlab.com");
    await dialog.getByLabel("Conditions").fill("project_path=acme/models\nref=main");
    await dialog.getByText("A service whose token has all these claims gets role owner").waitFor();
    await dialog.getByRole("button", { name: "Add the rule" }).click();
    await page.getByText("Rule ops is set.").waitFor();
    expect(fake.requests.find((r) => r.procedure === "SetSignInRule")?.request).toMatchObject({
      rule: { name: "ops", role: 3, issuer: "https://gitlab.com", conditions: [{ claim: "project_path", value: "acme/models" }, { claim: "ref", value: "main" }] },
    });
    await page.getByRole("button", { name: "Remove rule github" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove the rule" }).click();
    await page.getByText("Rule github is removed.").waitFor();
    expect(found).toEqual([]);
  });

  it("people sign in at an issuer, and come back to the page", async () => {
    const { page, fake, found } = await open(owned, "/ui/keys", look);
    await page.getByRole("row", { name: /wl_77b2/ }).waitFor();
    fake.signedIn = false;
    fake.issuer = true;
    await page.reload();
    await page.getByRole("link", { name: "Sign in with single sign-on" }).waitFor();
    await inspect(page, `sign-in-sso-${look.name}`);
    await page.getByRole("link", { name: "Sign in with single sign-on" }).click();
    await page.getByRole("row", { name: /wl_77b2/ }).waitFor();
    expect(fake.calls).toContain("/ui/sso/login");
    expect(new URL(page.url()).pathname).toBe("/ui/keys");
    expect(found).toEqual([]);
  });

  it("a map shows where regions are, and each has a page", async () => {
    const { page, fake, found } = await open(worldwide, "/ui/fleet", look);
    const map = page.getByRole("list", { name: "Regions on the map" });
    await map.getByRole("button", { name: "us-west-2: connected, 12 changes behind, 25 of 48 GPUs used" }).waitFor();
    await map.getByRole("button", { name: /europe-west4: unreachable, up to date/ }).waitFor();
    expect(await map.getByRole("button", { name: /nowhere/ }).count()).toBe(0);
    await page.getByText("1 region is not on the map").click();
    await page.getByText("windlass region label nowhere latitude=52.4 longitude=4.9").waitFor();
    // A mark is reached and pressed with the keyboard.
    const mark = map.getByRole("button", { name: /ap-northeast-1/ });
    await mark.focus();
    await page.keyboard.press("Enter");
    expect(await mark.getAttribute("aria-expanded")).toBe("true");
    const chosen = page.getByRole("list", { name: "Regions of the chosen mark" });
    await chosen.getByText("up to date, 25 of 48 GPUs used, 20 free").waitFor();
    await inspect(page, `map-${look.name}`);
    // Those that are close together share a mark on a narrow screen.
    await map.getByRole("button", { name: /europe-west4/ }).click();
    await chosen.getByRole("link", { name: "europe-west4" }).click();
    await page.getByRole("heading", { name: "europe-west4" }).waitFor();
    expect(new URL(page.url()).pathname).toBe("/ui/fleet/europe-west4");
    await page.getByText("Its agent was last heard of").waitFor();
    await page.getByRole("list", { name: "Words for parts of the region" }).getByText("rack").waitFor();
    await page.getByRole("row", { name: /H100-80GB.*reserved.*4.*21 of 32 used, 8 free, 3 on hosts that take nothing.*4 free on one host.*24/ }).waitFor();
    await inspect(page, `region-${look.name}`);
    await page.goto(`${fake.url}/ui/fleet/us-east-1`);
    await page.getByRole("link", { name: "default/production/embeddings" }).waitFor();
    await page.getByRole("button", { name: "Set the labels of us-east-1" }).click();
    const field = page.getByLabel("Labels, one NAME=VALUE in each line");
    await field.fill("latitude");
    await page.getByRole("button", { name: "Set the labels", exact: true }).click();
    await page.getByRole("alert").getByText('"latitude" is not NAME=VALUE').waitFor();
    await field.fill("latitude=1.5\nlongitude=-2");
    await inspect(page, `labels-${look.name}`);
    await page.getByRole("button", { name: "Set the labels", exact: true }).click();
    await page.getByText("The labels of us-east-1 are set.").waitFor();
    expect(fake.requests.at(-1)?.request).toMatchObject({ region: "reg_us-east-1", labels: { latitude: "1.5", longitude: "-2" }, resourceVersion: 4n });
    await page.goto(`${fake.url}/ui/fleet/mars`);
    await page.getByText("There is no region mars").waitFor();
    await page.getByRole("link", { name: "Show all regions" }).click();
    await page.getByRole("button", { name: "Hide the map" }).click();
    await page.reload();
    await page.getByRole("button", { name: "Show the map" }).waitFor();
    expect(await map.count()).toBe(0);
    expect(await page.getByRole("article").count()).toBe(12);
    expect(found).toEqual([]);
  });

  it("regions are created, joined and closed by those who manage them", async () => {
    const { page, fake, found } = await open(owned, "/ui/fleet", look);
    await page.getByRole("button", { name: "Create a region" }).click();
    await page.getByLabel("Name").fill("eu-north-1");
    await inspect(page, `new-region-${look.name}`);
    await page.getByRole("dialog").getByRole("button", { name: "Create the region" }).click();
    await page.getByText("wlj_t0ken-of-the-region").waitFor();
    await inspect(page, `join-token-${look.name}`);
    await page.getByRole("button", { name: "I have kept it" }).click();
    expect(await page.content()).not.toContain("wlj_");
    await page.getByRole("button", { name: "Make a join token of us-east-1" }).click();
    await page.getByLabel("Good for").selectOption("a day");
    await page.getByRole("dialog").getByRole("button", { name: "Make the token" }).click();
    await page.getByText("wlj_t0ken-of-the-region").waitFor();
    await page.getByRole("button", { name: "Revoke the credentials of us-east-1" }).click();
    await page.getByRole("dialog").getByText("What runs there keeps running").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke the credentials" }).click();
    await page.getByText("1 credential is revoked.").waitFor();
    expect(fake.requests.filter((r) => /Region|Token|Credentials/.test(r.procedure)).map((r) => r.request)).toMatchObject([
      { name: "eu-north-1", platform: false }, { region: "eu-north-1", ttlSeconds: 3600 }, { region: "us-east-1", ttlSeconds: 86_400 }, { region: "us-east-1" },
    ]);
    expect(await page.getByRole("button", { name: /Evict/ }).count()).toBe(0);
    expect(found).toEqual([]);
  });

  it("the workspace shows what is used of each limit, and its features", async () => {
    const { page, fake, found } = await open(owned, "/ui/fleet", look);
    await page.getByRole("link", { name: "Workspace" }).click();
    await page.getByRole("row", { name: /GPUs.*30 of 30.*set for this workspace/ }).waitFor();
    await page.getByRole("row", { name: /Deployments.*4, no limit.*as of the control plane/ }).waitFor();
    await page.getByRole("row", { name: /Starts at once.*10, 7 left now/ }).waitFor();
    await page.getByText("windlass workspace quota --gpus 64").waitFor();
    await inspect(page, `quota-${look.name}`);
    await page.getByRole("button", { name: "Lower limits" }).click();
    await page.getByRole("dialog").getByLabel("Instances").fill("20");
    await inspect(page, `limits-${look.name}`);
    await page.getByRole("dialog").getByRole("button", { name: "Set the limits" }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    const set = fake.requests.find((r) => r.procedure === "SetQuota")?.request;
    expect(set).toMatchObject({ workspace: "ws_1", own: { gpus: 30n, instances: 20n }, resourceVersion: 2n });
    await page.getByRole("navigation", { name: "Pages of workspace acme" }).getByRole("link", { name: "Features" }).click();
    await page.getByRole("row", { name: /canary.*yes.*allowed to this workspace/ }).waitFor();
    await page.getByRole("row", { name: /roles.*no.*denied to this workspace/ }).waitFor();
    await page.getByRole("row", { name: /autoscaling.*yes.*as tier basic has it/ }).waitFor();
    expect(await page.getByRole("button", { name: "Set features" }).count()).toBe(0);
    await inspect(page, `features-${look.name}`);
    expect(found).toEqual([]);
  });

  it("the load of the last hour is drawn, with what is missing, and read by keyboard", async () => {
    const { page, found } = await open(full, app, look);
    await page.getByRole("navigation", { name: "Pages of chat" }).getByRole("link", { name: "Load" }).click();
    await page.getByRole("img", { name: /^Requests a second in the last hour: lowest/ }).waitFor();
    expect(await page.locator(".plot canvas").count()).toBe(6);
    await page.getByText("Region ap-south-1 does not answer: it is asked again and again. What is shown of it ends at").waitFor();
    await page.getByText(/Of eu-west-1, nothing is known before \d\d:\d\d:\d\d, when its agent started/).waitFor();
    await page.getByRole("row", { name: /us-east-1 [\d.]+.* 4 of 4/ }).waitFor();
    await page.getByRole("row", { name: /ap-south-1 –/ }).waitFor();
    await page.getByText("windlass top default/production/chat --watch").waitFor();
    await inspect(page, `load-${look.name}`);
    // Ten minutes ago its samples were missing.
    const time = page.getByRole("slider", { name: "Time" });
    await time.focus();
    for (let i = 0; i < 10; i++) await page.keyboard.press("ArrowLeft");
    await page.getByRole("row", { name: /ap-south-1 missing/ }).waitFor();
    await page.keyboard.press("Home");
    await page.getByRole("row", { name: /us-east-1 .* 3 of 3/ }).waitFor();
    await page.getByRole("row", { name: /eu-west-1 missing/ }).waitFor();
    await page.getByRole("button", { name: "Follow the newest" }).click();
    await page.getByRole("combobox", { name: "Region" }).selectOption("us-east-1");
    expect(page.url()).toContain("region=us-east-1");
    await page.getByText("does not answer").waitFor({ state: "detached" });
    expect(found).toEqual([]);
  });

  it("a conversation with the app shows its words as they come", async () => {
    const model = await new FakeApp().start();
    cleanups.push(() => model.stop());
    const { page, fake, found } = await open(full, "/ui/apps", look);
    fake.apps = model.url;
    fake.scene = { ...full, app: { ...full.app, app: { ...full.app?.app, urls: [model.url] } } as Scene["app"] };
    await page.goto(`${fake.url}${app}/chat`);
    await page.getByPlaceholder("llama").waitFor();
    await page.getByLabel("Question").fill("Hello");
    await page.keyboard.press("Enter");
    await page.getByText("Good <img src=x onerror=window.hacked=1> morning.").waitFor();
    expect(await page.evaluate(() => "hacked" in window)).toBe(false);
    await page.getByText(/^first token after \d+ ms/).waitFor();
    // The conversation goes on, and a stopped answer stays.
    const first = model.words.join("");
    Object.assign(model, { hangs: true, words: ["Never ", "ending"] });
    await page.getByLabel("Question").fill("And <b>now</b>?");
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText("Never ending").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByRole("button", { name: "Send" }).waitFor();
    await page.getByText("And <b>now</b>?").waitFor();
    expect(model.asked.map((a) => a.body.model)).toEqual(["llama", "llama"]);
    expect(model.asked[1]?.body.messages).toEqual([
      { role: "user", content: "Hello" },
      { role: "assistant", content: first },
      { role: "user", content: "And <b>now</b>?" },
    ]);
    await inspect(page, `chat-${look.name}`);
    // An app with keys says so. A key is sent to the app alone.
    Object.assign(model, { hangs: false, key: "secret" });
    await page.getByRole("button", { name: "Begin anew" }).click();
    await page.getByLabel("Question").fill("Hello");
    await page.keyboard.press("Enter");
    await page.getByText("The app answered 401: Unauthorized. Enter one of the app's keys").waitFor();
    await page.getByLabel("Key of the app, if it has keys").fill("secret");
    await page.getByLabel("Question").fill("Hello again");
    await page.keyboard.press("Enter");
    await page.getByText("Never ending").waitFor();
    expect(model.asked.at(-1)).toMatchObject({ key: "Bearer secret", body: { messages: [{ role: "user", content: "Hello again" }] } });
    expect(await page.evaluate(() => JSON.stringify([localStorage, sessionStorage]))).not.toContain("secret");
    expect(found.filter((f) => !f.includes("401"))).toEqual([]);
    // An app that does not allow the page: the page says what to add.
    model.open = false;
    await page.getByLabel("Question").fill("Hello");
    await page.keyboard.press("Enter");
    await page.getByText(`origins: [${fake.url}]`).waitFor();
    await inspect(page, `chat-refused-${look.name}`);
  });

  it("freezes are set with their effect stated, and lifted", async () => {
    const { page, fake, found } = await open(owned, "/ui/freezes", look);
    await page.getByRole("row", { name: /launch-week.*in force.*project default.*waits for its end/ }).waitFor();
    await page.getByRole("row", { name: /nights.*waits.*the workspace.*is refused/ }).waitFor();
    await inspect(page, `freezes-${look.name}`);
    await page.getByRole("button", { name: "Set a freeze" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("From now until somebody lifts it, no rollout of the workspace starts: deploys and changes of variables are refused.").waitFor();
    await dialog.getByLabel("Name", { exact: true }).fill("nights");
    await dialog.getByLabel(/^Reason/).fill("no one is on call");
    await dialog.getByLabel("Scope").selectOption("an app");
    await dialog.getByLabel(/^App, as/).fill("default/production/chat");
    await dialog.getByLabel("A deploy meanwhile").selectOption("hold");
    await dialog.getByLabel(/^Only in these windows/).fill("22:00 - 25:00");
    await dialog.getByLabel("Time zone of the windows").fill("Europe/London");
    await dialog.getByText("no rollout of app default/production/chat starts: deploys are accepted, and their rollouts wait for its end").waitFor();
    await inspect(page, `freeze-${look.name}`);
    await dialog.getByRole("button", { name: "Set the freeze" }).click();
    await dialog.getByRole("alert").getByText('Window 1, "22:00 - 25:00", is none').waitFor();
    await dialog.getByLabel(/^Only in these windows/).fill("22:00 - 06:00");
    await dialog.getByRole("button", { name: "Set the freeze" }).click();
    await dialog.getByRole("alert").getByText("A freeze nights exists already").waitFor();
    expect(fake.calls).not.toContain("SetFreeze");
    await dialog.getByLabel("Name", { exact: true }).fill("evenings");
    await dialog.getByRole("button", { name: "Set the freeze" }).click();
    await page.getByText("Freeze evenings is set").waitFor();
    expect(fake.requests.find((r) => r.procedure === "SetFreeze")?.request).toMatchObject({
      name: "evenings", reason: "no one is on call", onStart: 2, project: "", app: "default/production/chat", from: 0n, until: 0n, weekly: [{ start: "22:00", end: "06:00" }], timeZone: "Europe/London",
    });
    await page.getByRole("button", { name: "Lift launch-week" }).click();
    await dialog.getByText("Rollouts that it holds start at once, unless another freeze holds them.").waitFor();
    await dialog.getByRole("button", { name: "Lift the freeze" }).click();
    await page.getByText("Freeze launch-week is lifted. It held the rollouts of 1 app.").waitFor();
    expect(found).toEqual([]);
    const { page: seen } = await open(full, "/ui/freezes", look);
    await seen.getByText("launch-week").waitFor();
    expect(await seen.getByRole("button", { name: /Lift|Set a freeze/ }).count()).toBe(0);
    const { page: none } = await open({ ...owned, answers: { ...owned.answers, ListFreezes: {} } }, "/ui/freezes", look);
    await none.getByText("windlass freeze set weekends").waitFor();
  });

  it("endpoints of notifications are added, tested and removed, and deliveries shown", async () => {
    const { page, fake, found } = await open(owned, "/ui/notifications", look);
    await page.getByRole("row", { name: /pager.*https:\/\/hooks.example.com.*the workspace.*all.*CloudEvents.*1 pending, 3 dead/ }).waitFor();
    await page.getByRole("button", { name: "Deliveries to pager", exact: true }).click();
    await page.getByRole("row", { name: /failed default\/production\/chat v5.*pending.*2 tries.*answered 503/ }).waitFor();
    await page.getByRole("row", { name: /region-unreachable region ap-south-1, 4 apps.*dead/ }).waitFor();
    await inspect(page, `notifications-${look.name}`);
    const dialog = page.getByRole("dialog");
    await page.getByRole("button", { name: "Send dead deliveries to pager again" }).click();
    await dialog.getByRole("button", { name: "Send them again" }).click();
    await page.getByText("3 deliveries are sent again.").waitFor();
    await page.getByRole("button", { name: "Send a test to team" }).click();
    await page.getByText("A test is on its way to https://hooks.slack.com").waitFor();
    await page.getByRole("button", { name: "Add an endpoint" }).click();
    await dialog.getByLabel("Name", { exact: true }).fill("oncall");
    await dialog.getByLabel("URL").fill("https://example.com/hook");
    await dialog.getByLabel("region-back").uncheck();
    await dialog.getByText("for events of the workspace: failed, rolled-back, approval-needed, held, region-unreachable.").waitFor();
    await inspect(page, `endpoint-${look.name}`);
    await dialog.getByRole("button", { name: "Add the endpoint" }).click();
    await page.getByText("whsec_s3cr3t-of-the-endpoint").waitFor();
    expect(fake.requests.find((r) => r.procedure === "SetNotificationEndpoint")?.request).toMatchObject({ name: "oncall", url: "https://example.com/hook", format: 1, kinds: [1, 2, 3, 4, 5], project: "", app: "" });
    await page.getByRole("button", { name: "I have kept it" }).click();
    expect(await page.content()).not.toContain("whsec_");
    await page.getByRole("button", { name: "Remove pager" }).click();
    await dialog.getByText("1 pending and 3 dead deliveries are deleted with it.").waitFor();
    await dialog.getByRole("button", { name: "Remove the endpoint" }).click();
    await page.getByText("Endpoint pager is removed.").waitFor();
    expect(found).toEqual([]);
    const { page: seen } = await open({ ...owned, role: full.role }, "/ui/notifications", look);
    await seen.getByText("pager").first().waitFor();
    expect(await seen.getByRole("button", { name: /Remove|Test|Add/ }).count()).toBe(0);
  });

  it("domains are added and verified, and app keys shown once", async () => {
    const { page, fake, found } = await open(full, app, look);
    await page.getByRole("navigation", { name: "Pages of chat" }).getByRole("link", { name: "Hosts" }).click();
    await page.getByText("windlass-verify=0f77aa21c9d4").waitFor();
    expect(await page.getByRole("button", { name: "Verify chat.example.com" }).count()).toBe(0);
    await page.getByText('"content":"Say hello."').waitFor();
    await page.getByLabel("At", { exact: true }).selectOption("https://chat.example.com");
    await page.getByLabel("Ask for").selectOption("a completion, as it comes");
    await page.getByLabel("Text", { exact: true }).fill("It's late");
    await page.getByText("curl -sN https://chat.example.com/v1/completions").waitFor();
    await page.getByText(`"prompt":"It'\\''s late"`).waitFor();
    await page.getByRole("button", { name: "Verify new.example.com" }).click();
    await page.getByRole("alert").getByText("The DNS has no TXT record").waitFor();
    await inspect(page, `hosts-${look.name}`);
    const tab = page.getByRole("navigation", { name: "Pages of chat" }).getByRole("link", { name: "Hosts" });
    const edge = await tab.evaluate((e) => e.getBoundingClientRect().right);
    expect(edge, "the tab of the page is in view").toBeLessThanOrEqual(look.width);
    await page.getByRole("button", { name: "Add a domain" }).click();
    await page.getByLabel("Domain", { exact: true }).fill("more.example.com");
    await page.getByRole("dialog").getByRole("button", { name: "Add the domain" }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.getByRole("button", { name: "Remove chat.example.com" }).click();
    await page.getByRole("dialog").getByText("no longer served").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Remove the domain" }).click();
    await page.getByText("chat.example.com is removed.").waitFor();
    await page.getByRole("button", { name: "Create an app key" }).click();
    await page.getByRole("textbox", { name: "Name" }).fill("web");
    await page.getByRole("dialog").getByRole("button", { name: "Create the key" }).click();
    await page.getByText("wak_v4lue-of-the-app-key").waitFor();
    await page.getByRole("button", { name: "I have kept it" }).click();
    await page.getByRole("button", { name: "Revoke mobile" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke the key" }).click();
    await page.getByText("App key mobile is revoked.").waitFor();
    expect(fake.requests.filter((r) => /Domain|AppKey/.test(r.procedure) && !r.procedure.startsWith("List")).map((r) => [r.procedure, r.request.domain ?? r.request.name])).toEqual([
      ["VerifyDomain", "new.example.com"], ["AddDomain", "more.example.com"], ["RemoveDomain", "chat.example.com"], ["CreateAppKey", "web"], ["RevokeAppKey", "mobile"],
    ]);
    expect(found).toEqual([]);
  });

  it("roles have rows of their own, below their region and their replica", async () => {
    const { page, fake, found } = await open(grouped, app, look);
    await page.getByRole("row", { name: /us-east-1, role decode.*3 of 4 ready OutOfMemory killed at 64 GiB/ }).waitFor();
    await page.getByRole("row", { name: /us-east-1, role prefill entry.*2 of 2 ready/ }).waitFor();
    await page.getByText("2 of 3 ready").waitFor();
    await page.getByText("chat-v4-0-decode-1").waitFor();
    const roles = page.getByRole("table", { name: "Roles of v4" });
    await roles.getByRole("row", { name: /prefill entry 1 in each replica changes as one with decode/ }).waitFor();
    await roles.getByRole("row", { name: /decode 2 in each replica 2 hosts each, ready and restarted as one; stable slots: a successor takes the slot; starts after prefill/ }).waitFor();
    await page.getByText("a group of 3 instances").waitFor();
    await page.getByText("All pods of a replica start or none does. They try again if one has no node for 5m").waitFor();
    expect(await page.getByText("stable slot", { exact: true }).count()).toBe(2);
    await inspect(page, `roles-${look.name}`);
    await page.goto(`${fake.url}${rollout}`);
    await page.getByText("groups ready").first().waitFor();
    await page.getByText("prefill 2 of 2, decode 3 of 4 ready").first().waitFor();
    await inspect(page, `rollout-of-groups-${look.name}`);
    expect(found).toEqual([]);
  });

  it("a pool is shown by the instances of each role", async () => {
    const { page, fake, found } = await open(pooled, app, look);
    await page.getByText("prefill: 12 of 16 ready").waitFor();
    await page.getByText("decode: 4 of 4 ready").waitFor();
    await page.getByText("update order sequential: decode").waitFor();
    await page.getByRole("row", { name: /us-east-1.*50 of 100 % of the pool ready/ }).waitFor();
    await page.getByText("prefill and decode of one version, nixl. Prompts of fewer than 2000 bytes go to decode alone").waitFor();
    await page.getByRole("table", { name: "Roles of v4" }).getByRole("row", { name: /decode entry counted separately/ }).waitFor();
    await inspect(page, `pool-${look.name}`);
    await page.goto(`${fake.url}${rollout}`);
    await page.getByText("old: prefill 4 of 8, decode 2 of 2 ready").first().waitFor();
    await page.getByText("complete pairs: 3 % of the pool").waitFor();
    await inspect(page, `rollout-of-pool-${look.name}`);
    expect(found).toEqual([]);
  });

  it("the plan of a pool counts percent, and says its pairs and its set capacity", async () => {
    const { page, found } = await open(pooledPlan, "/ui/plan", look);
    await page.getByLabel("YAML or JSON").fill(pooledFile);
    await page.getByRole("button", { name: "Show the plan" }).click();
    await page.getByText("nothing of v4 (0 %), the pool of v6 (100 %), in place").waitFor();
    await page.getByText("prefill and decode of one version, nixl").waitFor();
    await page.getByText("Set capacity: 0 % at worst of instances of one version, in 10 steps of order sequential").waitFor();
    await page.getByText("% of the pool", { exact: false }).first().waitFor();
    await page.getByText("has no pair of a prefill and a decode instance").waitFor();
    await inspect(page, `pool-plan-${look.name}`);
    expect(found).toEqual([]);
  });

  it("the output of all instances is followed, narrowed, held, and goes on where it was", async () => {
    const { page, fake, found } = await open(full, app, look);
    await page.getByRole("navigation", { name: "Pages of chat" }).getByRole("link", { name: "Logs" }).click();
    const output = page.getByRole("log", { name: "Output" });
    await output.getByText("#119").waitFor();
    await output.getByText("WARNING queue is 31 long #117").waitFor();
    await page.getByText("3 instances").waitFor();
    await inspect(page, `logs-${look.name}`);
    // What a person reads stays where it is, and what comes meanwhile waits.
    await output.focus();
    await page.keyboard.press("Home");
    await output.getByText("Follows v4 us-east-1 main/0.0, v4 us-east-1 main/1.0, v5 eu-west-1 main/3.0").waitFor();
    await page.getByText("held, 0 lines wait").waitFor();
    await fake.restart(300);
    await page.getByText("held, 2 lines wait").waitFor();
    await output.getByText("Follows v4").waitFor();
    expect(fake.requests.filter((r) => r.procedure === "FollowLogs").map((r) => r.request)).toMatchObject([{ tailLines: 200, positions: [] }, { positions: [{ instance: "ins_0", position: { offset: 900n } }] }]);
    await page.getByRole("button", { name: "Go on with the newest" }).click();
    await output.getByText("after the break").waitFor();
    await output.getByText("12 lines are missing").waitFor();

    await page.getByLabel("Region").selectOption("eu-west-1");
    await page.getByLabel("Version").selectOption("v5");
    await page.getByLabel("Since").selectOption("the last hour");
    await page.getByLabel("Lines that match").fill("error|time.?out");
    await page.getByText("windlass logs -f default/production/chat --region eu-west-1 --version v5 --since 60m --grep 'error|time.?out'").waitFor();
    await expect.poll(() => fake.requests.at(-1)?.request).toMatchObject({ app: "default/production/chat", region: "eu-west-1", version: 5, grep: "error|time.?out", tailLines: 0 });
    expect(page.url()).toContain("region=eu-west-1&version=5&minutes=60&grep=");
    await page.goto(fake.url + app);
    await page.getByRole("link", { name: "Logs of v5 eu-west-1 main/3.0" }).click();
    await expect.poll(() => fake.requests.at(-1)?.request).toMatchObject({ instance: "ins_3", app: "" });
    expect(found).toEqual([]);
  });

  it("variables are shown when asked for, and they and secrets are set and removed", async () => {
    const { page, fake, found } = await open(full, app, look);
    await page.getByRole("navigation", { name: "Pages of chat" }).getByRole("link", { name: "Variables" }).click();
    // A change builds on the version in flight.
    await page.getByRole("row", { name: /LOG_LEVEL not shown.*of the app/ }).waitFor();
    await page.getByRole("row", { name: /REGISTRY not shown.*from the environment Change/ }).waitFor();
    await page.getByRole("row", { name: /hf-token version 4/ }).waitFor();
    await page.getByRole("row", { name: /TZ/ }).waitFor();
    expect(await page.getByText("of the live version").count()).toBe(0);
    expect(await page.getByText("debug", { exact: true }).count()).toBe(0);
    await page.getByRole("button", { name: "Show the value of LOG_LEVEL" }).click();
    await page.getByText("debug", { exact: true }).waitFor();
    await inspect(page, `variables-${look.name}`);
    const dialog = page.getByRole("dialog");
    await page.getByRole("button", { name: "Change LOG_LEVEL" }).click();
    await dialog.getByText("The rollout of v5, which is in flight, ends.").waitFor();
    await dialog.getByLabel("Value").fill("info");
    await dialog.getByLabel("Why, for the history (optional)").fill("too loud");
    await dialog.getByRole("button", { name: "Set the variable" }).click();
    await page.getByText("v6 is on its way. ap-south-1 is out of reach.").waitFor();
    await page.getByRole("button", { name: "Remove BATCH" }).click();
    await dialog.getByRole("button", { name: "Remove the variable" }).click();
    await dialog.waitFor({ state: "detached" });
    expect(await page.getByRole("button", { name: "Remove REGISTRY", exact: true }).count()).toBe(0);
    await page.getByRole("button", { name: "Remove TZ from the environment" }).click();
    await dialog.getByText("Nothing changes until then.").waitFor();
    await dialog.getByRole("button", { name: "Remove the variable" }).click();
    await page.getByText("TZ is removed, for the next version of each app.").waitFor();

    await page.getByRole("button", { name: "Store a new value of hf-token" }).click();
    await dialog.getByLabel("Value").fill("s3cr3t");
    await inspect(page, `secret-${look.name}`);
    await dialog.getByRole("button", { name: "Store the value" }).click();
    await page.getByText("Version 5 of hf-token is stored, and 2 apps take it.").waitFor();
    expect(await page.content()).not.toContain("s3cr3t");
    await page.getByRole("button", { name: "Delete secret hf-token" }).click();
    await dialog.getByRole("button", { name: "Delete the secret" }).click();
    await dialog.getByText("V4 of chat refers to the secret").waitFor();
    expect(fake.requests.filter((r) => /^(Set|Update|Delete)/.test(r.procedure)).map((r) => r.request)).toMatchObject([
      { app: "app_chat", set: { LOG_LEVEL: "info" }, message: "too loud" }, { app: "app_chat", unset: ["BATCH"] }, { environment: "env_1", name: "production", variables: { REGISTRY: "registry.example" }, resourceVersion: 9n },
      { environment: "default/production", name: "hf-token", value: "s3cr3t" }, { name: "hf-token" },
    ]);
    expect(found).toEqual([]);
  });

  it("presets say what they make of a model, and what a newer one would change", async () => {
    const { page, fake, found } = await open(full, "/ui/fleet", look);
    await page.getByRole("link", { name: "Presets" }).click();
    await page.getByRole("row", { name: /vllm vllm\/3 vLLM version 0.20.0 by default 0.9.0 to before 0.22.0 models from hf, file, s3, gs/ }).waitFor();
    await inspect(page, `presets-${look.name}`);
    await page.getByRole("link", { name: "custom:ours" }).click();
    await expect.poll(() => fake.requests.find((r) => r.procedure === "GetPreset")?.request).toMatchObject({ name: "custom:ours" });
    await page.goto(`${fake.url}/ui/presets/vllm`);
    await page.getByLabel("Model", { exact: true }).fill("hf://broken/model");
    await page.getByRole("button", { name: "Show what it makes" }).click();
    await page.getByText("8 GPUs are not 3 x 2").waitFor();
    await page.getByLabel("Model", { exact: true }).fill("hf://meta-llama/Llama-3.1-8B");
    await page.getByText("The fields are others now").waitFor();
    await page.getByLabel("GPUs of an instance").fill("8");
    await page.getByLabel("Product of the GPUs").fill("H100-80GB");
    await page.getByLabel("Flags of the engine").fill("kv-cache-dtype=fp8\nenable-x");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.getByText("image: vllm/vllm-openai:v0.20.0").waitFor();
    await page.getByText("ContextTooLarge").waitFor();
    expect(fake.requests.at(-1)?.request).toMatchObject({
      spec: { serve: { engine: "vllm/3", model: "hf://meta-llama/Llama-3.1-8B", options: { "kv-cache-dtype": "fp8", "enable-x": true } }, resources: { gpu: { count: 8, product: "H100-80GB" } } },
    });
    await page.getByLabel("App", { exact: true }).selectOption("default/production/chat");
    await page.getByRole("table", { name: "From v4 to vllm/3" }).waitFor();
    await page.getByText("windlass preset diff default/production/chat").waitFor();
    await page.getByText("vllm:num_requests_waiting").waitFor();
    await inspect(page, `preset-${look.name}`);
    await page.getByLabel("Engine version", { exact: true }).fill("0.8.0");
    await page.getByLabel("Engine version", { exact: true }).press("Enter");
    await page.getByText("It knows no metric of that version.").waitFor();
    expect(page.url()).toContain("engine=0.8.0");
    expect(found).toEqual([]);
  });

  it("a filter of the apps is kept as a view", async () => {
    const { page, fake, found } = await open(full, "/ui/apps", look);
    await page.getByRole("button", { name: "failed 1" }).click();
    await page.getByRole("button", { name: "Save this view" }).click();
    await page.getByLabel("Name").fill("to mend");
    await page.getByRole("dialog").getByRole("button", { name: "Save the view" }).click();
    await page.goto(`${fake.url}/ui/apps`);
    await page.getByRole("link", { name: "rerank" }).waitFor();
    await page.getByRole("list", { name: "Saved views" }).getByRole("link", { name: "to mend" }).click();
    await page.getByText("1 of 5").waitFor();
    expect(await page.getByRole("link", { name: "to mend" }).getAttribute("aria-current")).toBe("page");
    await inspect(page, `views-${look.name}`);
    await page.getByRole("button", { name: "Remove view to mend" }).click();
    await page.getByText("View to mend is removed.").waitFor();
    expect(await page.evaluate(() => localStorage.length)).toBe(0);
    expect(found).toEqual([]);
  });

  it("the empty list shows the commands to type", async () => {
    const { page } = await open(empty, "/ui/apps", look);
    await page.getByText("windlass deploy -f app.yaml").waitFor();
    await inspect(page, `empty-${look.name}`);
    await page.goto(new URL("/ui/apps/default/production/draft/versions", page.url()).href);
    await page.getByText("No version was made yet").waitFor();
    await page.getByText("windlass deploy -f app.yaml").waitFor();
    await inspect(page, `empty-versions-${look.name}`);
    await page.goto(new URL("/ui/apps/default/production/draft/hosts", page.url()).href);
    await page.getByText("windlass domain add").waitFor();
    await page.getByText("windlass app-key create").waitFor();
    await page.goto(new URL("/ui/apps/default/production/draft/variables", page.url()).href);
    await page.getByText("windlass secret set").waitFor();
    await page.getByText("windlass env shared").waitFor();
    await page.goto(new URL("/ui/apps/default/production/draft/logs", page.url()).href);
    await page.getByText("Nothing was written yet").waitFor();
    await page.getByText("windlass logs -f default/production/draft").waitFor();
    await inspect(page, `empty-logs-${look.name}`);
    await page.goto(new URL("/ui/presets", page.url()).href);
    await page.getByText("windlass preset list --remote").waitFor();
    await page.goto(new URL("/ui/audit", page.url()).href);
    await page.getByText("Nothing was changed yet").waitFor();
    await page.goto(new URL("/ui/keys", page.url()).href);
    await page.getByText("windlass key create ci").waitFor();
  });
});

it("texts of others are shown as they are, and run nowhere", async () => {
  for (const path of ["/ui/fleet", "/ui/fleet/us-east-1", "/ui/apps", app, rollout, `${app}/versions`, "/ui/plan", "/ui/keys", "/ui/members", "/ui/audit", `${app}/variables`, "/ui/quota", "/ui/features", "/ui/presets", "/ui/presets/vllm?app=default/production/chat", `${app}/hosts`, `${app}/logs`, `${app}/load`, "/ui/freezes", "/ui/notifications"]) {
    const { page, found } = await open(hostile, path);
    if (path === "/ui/plan") {
      await page.getByLabel("YAML or JSON").fill(file);
      await page.getByRole("button", { name: "Show the plan" }).click();
    }
    await page.getByText("onerror=").and(page.locator(":not(option)")).first().waitFor();
    await page.waitForTimeout(300);
    expect(await page.evaluate(() => "hacked" in window), path).toBe(false);
    expect(await page.locator("main img[src=x], main script").count(), path).toBe(0);
    expect(await page.locator('a[href^="javascript"]').count(), path).toBe(0);
    expect(found, path).toEqual([]);
  }
});

it("names in addresses add no command to those that are offered to copy", async () => {
  const { page } = await open(platform, `/ui/workspaces/${encodeURIComponent("a; rm -rf ~ #")}`);
  await page.getByText("windlass workspace quota 'a; rm -rf ~ #' --gpus 64").waitFor();
  const { page: own } = await open(full, "/ui/presets/vllm?app=--help");
  await own.getByText("windlass preset diff -- --help").waitFor();
});

it("a dialog does not overwrite what somebody else changed while it was open", async () => {
  const { page, fake } = await open(owned, "/ui/quota");
  await page.getByRole("button", { name: "Lower limits" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Instances").fill("20");
  fake.scene = {
    ...owned,
    answers: { ...owned.answers, GetQuota: { quota: { workspaceId: "ws_1", workspaceName: "acme", own: { gpus: 10n }, resourceVersion: 3n } }, SetQuota: () => new Refusal("aborted", "quota of workspace ws_1 has changed since") },
  };
  await fake.restart(0);
  await dialog.getByText("changed while this dialog was open").waitFor({ timeout: 30_000 });
  await dialog.getByRole("button", { name: "Set the limits" }).click();
  await dialog.getByRole("alert").getByText("has changed since").waitFor();
  expect(fake.requests.findLast((r) => r.procedure === "SetQuota")?.request).toMatchObject({ own: { gpus: 30n, instances: 20n }, resourceVersion: 2n });
});

it("a thousand apps are scrolled through with few rows, and found by a word", async () => {
  const { page } = await open(many, "/ui/apps");
  await page.getByRole("link", { name: "model-0000" }).waitFor();
  expect(await page.getByRole("row").count()).toBeLessThan(60);
  expect(await page.getByRole("table").getAttribute("aria-rowcount")).toBe("1001");
  await page.evaluate(() => window.scrollTo(0, document.body.scrollHeight));
  await page.getByRole("link", { name: "model-0999" }).waitFor();
  await page.getByRole("searchbox").pressSequentially("model-05 0510");
  await page.getByRole("link", { name: "model-0510" }).waitFor();
  expect(page.url()).toContain("q=model-05");
  await page.reload();
  await page.getByRole("link", { name: "model-0510" }).waitFor();
  expect(await page.getByRole("link", { name: /^model-/ }).count()).toBe(1);
});

it("an operator evicts a workspace from the platform's regions alone, after typing the region's name", async () => {
  const { page, fake } = await open(platform, "/ui/fleet");
  await page.getByRole("button", { name: "Evict a workspace from shared-1" }).click();
  expect(await page.getByRole("button", { name: /theirs-1/ }).count()).toBe(0);
  await page.getByRole("textbox", { name: "Workspace" }).fill("acme");
  await page.getByLabel("Type shared-1 to confirm").fill("shared");
  await page.getByRole("button", { name: "Evict the workspace" }).click();
  await page.getByRole("alert").getByText("Type shared-1 to evict from it").waitFor();
  expect(fake.calls).not.toContain("EvictWorkspace");
  await page.getByLabel("Type shared-1 to confirm").fill("shared-1");
  await page.getByRole("button", { name: "Evict the workspace" }).click();
  await page.getByText("4 apps of acme are scaled to nothing in shared-1.").waitFor();
  expect(await page.getByRole("link", { name: "Apps" }).count()).toBe(0);
});

describe.each(looks)("at $name, an operator", (look) => {
  it("creates workspaces, and sets their limits and features", async () => {
    const { page, fake, found } = await open(platform, "/ui/fleet", look);
    await page.getByRole("link", { name: "Workspaces" }).click();
    await page.getByRole("row", { name: /basic autoscaling, analysis, roles/ }).waitFor();
    await page.getByRole("button", { name: "Create a workspace" }).click();
    await page.getByLabel("Name").fill("vision");
    await page.getByRole("dialog").getByRole("button", { name: "Create the workspace" }).click();
    await page.getByText("wl_0wner-key-of-the-workspace").waitFor();
    await inspect(page, `workspaces-${look.name}`);
    await page.getByRole("button", { name: "I have kept it" }).click();
    await page.getByRole("link", { name: "search" }).click();
    await page.getByRole("row", { name: /GPUs.*30 of 30/ }).waitFor();
    await page.getByRole("row", { name: /canary.*yes.*allowed to this workspace/ }).waitFor();
    await inspect(page, `workspace-${look.name}`);
    await page.getByRole("button", { name: "Set features" }).click();
    await page.getByLabel("Tier").selectOption("none");
    await page.getByLabel("multiRegion").selectOption("allowed");
    await page.getByLabel("roles").selectOption("as the tier: no");
    await inspect(page, `set-features-${look.name}`);
    await page.getByRole("dialog").getByRole("button", { name: "Set the features" }).click();
    await page.getByText("The features of search are set.").waitFor();
    await page.getByRole("button", { name: "Set limits" }).click();
    await page.getByRole("dialog").getByLabel("GPUs").fill("");
    await page.getByRole("dialog").getByRole("button", { name: "Set the limits" }).click();
    await page.getByText("The limits of search are set.").waitFor();
    expect(fake.requests.filter((r) => /^(Create|Set)/.test(r.procedure)).map((r) => r.request)).toMatchObject([
      { name: "vision" }, { workspace: "ws_1", tier: "none", allowed: [Feature.MULTI_REGION, Feature.CANARY], denied: [], resourceVersion: 3n }, { workspace: "ws_1", own: {}, resourceVersion: 2n },
    ]);
    expect(found).toEqual([]);
  });
});

it("a viewer gets no buttons that change anything", async () => {
  const { page } = await open({ ...full, role: many.role }, rollout);
  await page.getByText("Your key reads only.").waitFor();
  expect(await page.getByRole("button", { name: /Pause|Abort|Promote|Approve/ }).count()).toBe(0);
  await page.getByRole("link", { name: "Versions" }).click();
  await page.getByRole("button", { name: "Compare v4" }).waitFor();
  expect(await page.getByRole("button", { name: /Roll back|[Pp]in/ }).count()).toBe(0);
  await page.getByRole("link", { name: "Variables" }).click();
  await page.getByText("version 4").first().waitFor();
  await page.getByText("TZ").waitFor();
  expect(await page.getByRole("button", { name: /Set|Change|Remove|Store|Delete/ }).count()).toBe(0);
  await page.getByRole("link", { name: "Hosts" }).click();
  await page.getByText("wak_91c").waitFor();
  expect(await page.getByRole("button", { name: /Add|Remove|Verify|Create|Revoke/ }).count()).toBe(0);
  await page.getByRole("link", { name: "Plan" }).click();
  await page.getByLabel("YAML or JSON").fill(file);
  await page.getByRole("button", { name: "Show the plan" }).click();
  await page.getByText("Your key reads only").waitFor();
  expect(await page.getByRole("button", { name: /Deploy/ }).count()).toBe(0);
  await page.getByRole("link", { name: "Workspace" }).click();
  await page.getByText("windlass workspace").first().waitFor({ state: "detached" });
  expect(await page.getByRole("button", { name: "Lower limits" }).count()).toBe(0);
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByRole("row", { name: /wl_77b2/ }).waitFor();
  expect(await page.getByRole("button", { name: /Create|Revoke/ }).count()).toBe(0);
  expect(await page.getByRole("link", { name: "Audit" }).count()).toBe(0);
  await page.getByRole("link", { name: "Fleet" }).click();
  await page.getByRole("article", { name: "us-east-1" }).waitFor();
  expect(await page.getByRole("main").getByRole("button", { name: /Create|token|Revoke|Evict/ }).count()).toBe(0);
});

it("says that it is stale while the control plane is away, keeps what it shows and its place, and goes on by itself", async () => {
  const { page, fake } = await open(many, "/ui/apps");
  await page.getByRole("link", { name: "model-0000" }).waitFor();
  await page.evaluate(() => window.scrollTo(0, 20_000));
  await page.getByRole("link", { name: "model-0330" }).waitFor();
  const back = fake.restart(2500);
  await page.getByText("This page is stale").waitFor();
  await page.getByRole("link", { name: "model-0330" }).waitFor();
  await back;
  await page.getByText("This page is stale").waitFor({ state: "detached", timeout: 30_000 });
  await page.getByRole("link", { name: "model-0330" }).waitFor();
  expect(await page.evaluate(() => window.scrollY)).toBe(20_000);
});

it("is used with the keyboard alone", async () => {
  const { page } = await open(full, rollout);
  await page.getByRole("heading", { name: "Why it waits" }).waitFor();
  await page.keyboard.press("Tab");
  expect(await page.evaluate(() => document.activeElement?.textContent)).toContain("Skip to the content");
  await page.getByRole("button", { name: "Pause" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  expect(await page.evaluate(() => document.activeElement?.textContent)).toBe("Pause");
});
