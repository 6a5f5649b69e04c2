import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { AppSchema } from "../gen/windlass/v1/app_pb.js";
import { DeploymentSchema } from "../gen/windlass/v1/deployment_pb.js";
import { FreezeSchema } from "../gen/windlass/v1/freeze_pb.js";
import { diffVersions } from "./diff.js";
import { canPin, canRollBack, freezesOf, rollbackEffect } from "./versions.js";

const app = (more: object = {}) => create(AppSchema, { name: "chat", projectName: "default", environmentName: "production", liveVersion: 4, previousVersion: 3, latestVersion: 4, ...more });
const version = (n: number, spec: object = {}, more: object = {}) => create(DeploymentSchema, { version: n, spec: { image: "chat:1", regions: ["eu"], ...spec }, ...more });
const paths = (from: ReturnType<typeof version>, to: ReturnType<typeof version>) => diffVersions(from, to).map((c) => [c.path, c.kind, c.old, c.new]);

describe("what differs between two versions", () => {
  it("is told by the paths of the file, with the order of regions and secrets left aside", () => {
    const secrets = [{ envName: "A", secret: "a", version: 1 }, { envName: "B", secret: "b", version: 2 }];
    const before = version(1, { regions: ["eu", "us"], args: ["--a", "1"], resources: { cpuMillicores: 500 }, secrets, terminationGrace: { seconds: 30n } });
    const after = version(2, { regions: ["us", "eu"], args: ["--a", "2", "--b"], resources: { gpu: { count: 2 } }, secrets: [...secrets].reverse(), terminationGrace: { seconds: 30n } });
    expect(paths(before, after)).toEqual([
      ["args[1]", "changed", "1", "2"],
      ["args[2]", "added", "", "--b"],
      ["resources.cpuMillicores", "removed", "500", ""],
      ["resources.gpu.count", "added", "", "2"],
    ]);
  });
  it("has args that a preset made by flag, wherever they are", () => {
    const before = version(1, { generatedBy: "vllm/1", args: ["serve", "m", "--host", "0.0.0.0", "--seed", "-1", "--a"] });
    const after = version(2, {
      generatedBy: "vllm/2", args: ["serve", "m", "--new", "1", "--host", "0.0.0.0", "--seed", "2", "--a"],
      pinnedOverrides: [{ region: "eu", regionId: "reg_1", values: { args: ["serve", "n", "--b"] } }],
    });
    expect(paths(before, after)).toEqual([
      ['args["--new"]', "added", "", "1"],
      ['args["--seed"]', "changed", "-1", "2"],
      ["generatedBy", "changed", "vllm/1", "vllm/2"],
      ['regions["eu"].args["--b"]', "added", "", "true"],
      ['regions["eu"].args[0]', "added", "", "serve"],
      ['regions["eu"].args[1]', "added", "", "n"],
    ]);
  });
  it("has no value of a variable, and of a secret its name and version", () => {
    const changes = diffVersions(version(1, { env: { KEY: "old-value" }, secrets: [{ envName: "T", secret: "token", version: 1 }] }), version(2, { env: { KEY: "new-value" }, secrets: [{ envName: "T", secret: "token", version: 2 }] }));
    expect(changes.map((c) => [c.path, c.hidden])).toEqual([
      ['env["KEY"]', true],
      ['secrets["T"]', false],
    ]);
    expect(JSON.stringify(changes)).not.toMatch(/old-value|new-value/);
    expect(changes[1]).toMatchObject({ old: "token, version 1", new: "token, version 2" });
  });
  it("tells what overrides come to in each region, and images that a tag came to", () => {
    const pinnedOverrides = [{ region: "eu", regionId: "reg_1", values: { replicas: 3, env: { KEY: "x" } } }];
    expect(paths(version(1, {}, { resolvedImage: "chat@sha256:1" }), version(2, { overrides: [{ regions: ["eu"], replicas: 3 }], pinnedOverrides }, { resolvedImage: "chat@sha256:2" }))).toEqual([
      ["image, resolved", "changed", "chat@sha256:1", "chat@sha256:2"],
      ['regions["eu"].env["KEY"]', "added", "", ""],
      ['regions["eu"].replicas', "added", "", "3"],
    ]);
  });
});

describe("what can be done about a version", () => {
  it("is offered where it would change something", () => {
    const a = app({ rolloutId: "rol_1", latestVersion: 5, pins: [{ version: 2 }] });
    const of = (n: number, live = false) => [canRollBack(a, version(n, {}, { live })), canPin(a, version(n, {}, { live }))];
    expect([of(5), of(4, true), of(3), of(2)]).toEqual([[false, false], [false, false], [true, true], [true, false]]);
    expect(canRollBack(app({ liveVersion: 0 }), version(3))).toBe(false);
  });
  it("says which waits the way back has", () => {
    const text = (n: number, stable: boolean, steps = false) => rollbackEffect(app(), version(n, {}, { stable }), steps, false).join(" ");
    expect(text(3, true)).toContain("without steps, pauses, approvals");
    expect(text(2, true)).toContain("Approvals are waited for");
    expect(text(3, false)).toContain("takes every step");
    expect(text(3, true, true)).toContain("as a deploy does");
    expect(rollbackEffect(app({ rolloutId: "rol_1", latestVersion: 5 }), version(3), false, true).join(" ")).toMatch(/rollout to v5.*superseded.*rotated since/);
  });
});

it("freezes of an app are its own, its project's and the workspace's, those in force first", () => {
  const freeze = (name: string, more: object) => create(FreezeSchema, { name, ...more });
  const all = [
    freeze("later", { nextAt: 5n }), freeze("ended", {}), freeze("other", { project: "other", inForce: true }),
    freeze("mine", { app: "default/production/chat", inForce: true }), freeze("theirs", { app: "default/production/rerank", inForce: true }),
  ];
  expect(freezesOf(app(), all).map((f) => f.name)).toEqual(["mine", "later"]);
});
