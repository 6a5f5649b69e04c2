import { toJson } from "@bufbuild/protobuf";
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, it } from "vitest";
import { FileFreezeSchema } from "../gen/windlass/v1/freeze_pb.js";
import { RolloutPolicySchema } from "../gen/windlass/v1/rollout_pb.js";
import { ScalingPolicySchema } from "../gen/windlass/v1/scaling_pb.js";
import { DeploymentSpecSchema } from "../gen/windlass/v1/spec_pb.js";
import { clockTime, lineOf, readAppFile } from "./appfile.js";

const good = (text: string) => {
  const { file, faults } = readAppFile(text);
  expect(faults).toEqual([]);
  return file!;
};
const spec = (text: string) => toJson(DeploymentSpecSchema, good(text).spec);
const faults = (text: string) => readAppFile(text).faults.map((f) => `${f.line} ${f.path}: ${f.text}`);

describe("an app's file", () => {
  it("is read as the CLI does", () => {
    const f = good(`app: echo
project: shop
replicas: 2
regions: [eu-west-1]
command: [modelserver]
env: {PORT: "80", LOG: info}
health_check: {interval: 1m30s, expectedCodes: [204, "300-301"]}
kubernetes: {zoneSpread: required}
`);
    expect(f.app).toBe("shop/production/echo");
    expect(toJson(DeploymentSpecSchema, f.spec)).toEqual({
      replicas: 2, regions: ["eu-west-1"], command: ["modelserver"], env: { PORT: "80", LOG: "info" },
      healthCheck: { interval: "90s", expectedCodes: ["204", "300-301"] }, kubernetes: { zoneSpread: "ZONE_SPREAD_REQUIRED" },
    });
    expect(spec('{"app": "echo", "image": "a:1", "regions": ["eu"]}')).toEqual({ image: "a:1", regions: ["eu"] });
  });
  it("has a policy and a freeze, with times by the clocks of its zone", () => {
    const f = good(`app: a
rollout: {strategy: blue-green, maxSurge: 1, autoRollback: no}
freeze: {reason: r, from: "2026-07-01 18:00", until: 2026-12-24, onStart: hold, timeZone: Europe/Berlin, weekly: ["Fri 16:00 - Mon 08:00"]}`);
    expect(toJson(RolloutPolicySchema, f.rollout!)).toEqual({ strategy: "STRATEGY_BLUE_GREEN", maxSurge: "1", autoRollback: { enabled: false } });
    expect(toJson(FileFreezeSchema, f.freeze!)).toEqual({
      reason: "r", from: String(Date.parse("2026-07-01T16:00:00Z")), until: String(Date.parse("2026-12-23T23:00:00Z")), onStart: "ON_START_HOLD",
      timeZone: "Europe/Berlin", weekly: [{ start: "Fri 16:00", end: "Mon 08:00" }],
    });
    expect(clockTime("2026-12-24T18:00:00+01:00", "UTC")).toBe(Date.parse("2026-12-24T17:00:00Z"));
  });
  it("has options of an engine, whose values are of any kind", () => {
    const read = readAppFile("app: a\nserve:\n  engine: vllm\n  options: {max-num-seqs: 64, share: 0.9, on: true, off: false, many: [a, 1], text: '010'}\n");
    expect(read.faults).toEqual([]);
    expect(read.file?.spec.serve?.options).toEqual({ "max-num-seqs": 64, share: 0.9, on: true, off: false, many: ["a", 1], text: "010" });
    const bad = readAppFile("app: a\nserve: {options: {a: 010, b: {c: 1}, d: }}\n");
    expect(bad.faults.map((f) => f.path)).toEqual(["serve.options.a", "serve.options.b", "serve.options.d"]);
    expect(readAppFile("app: a\nserve: {options: [a]}\n").faults.map((f) => f.text)).toEqual(["want a mapping, got a list"]);
  });
  it("may repeat parts by anchors, and merge them", () => {
    expect(spec("app: a\nregions: [&r eu]\nresources: &x {cpuMillicores: 1, memoryMib: 2}\noverrides: [{regions: [*r], resources: {<<: *x, memoryMib: 3}}]\n")).toMatchObject({
      overrides: [{ regions: ["eu"], resources: { cpuMillicores: 1, memoryMib: 3 } }],
    });
  });
  it("is refused with the line and field of each fault, and the fix", () => {
    expect(faults("app: a\nregoins: [eu]\nreplicas: two\nenv:\n  PORT: 80\nhealthCheck: {interval: 10}\nresources: {cpuMillicores: 010}\n")).toEqual([
      "2 regoins: no such field: did you mean regions?",
      "3 replicas: want a whole number, got two",
      "5 env.PORT: 80 is not a text: put it in quotes",
      "6 healthCheck.interval: 10 has no unit: write for example 10s or 5m",
      "7 resources.cpuMillicores: 010 is not a number to every YAML parser: write it in decimal digits",
    ]);
    expect(faults("app: a\nroles: [{name: b, update: {maxSurge: 1}}]")).toEqual(["2 roles[0].update: not supported yet: leave it out; update of the app says in which order roles move"]);
    expect(faults("regions: [eu]")).toEqual(["0 app: missing: give the app a name, for example `app: echo`"]);
    expect(faults("app: a\nregions: eu\nrollout: {strategy: slow}\nimage: no")).toEqual([
      '3 rollout.strategy: "slow" is none of rolling, recreate, canary, blue-green, in-place',
      "2 regions: want a list, got eu: write [eu]",
      "4 image: no is not a text: put it in quotes",
    ]);
  });
  it("that is no file, is none", () => {
    expect(faults("")).toEqual(["0 : the file is not a mapping of fields: start with `app: NAME`"]);
    expect(faults("- a")[0]).toContain("not a mapping");
    expect(faults("app: a\n---\napp: b\n")[0]).toContain("a second document begins");
    expect(faults("app: a\napp: b\n")[0]).toContain("2 app: given twice");
    expect(faults("app: !!int a")[0]).toContain("is not known here: remove it");
    expect(faults("app: a\nregions: [eu\n").length).toBeGreaterThan(0);
    expect(faults(`app: a\nx: ${"[".repeat(100)}${"]".repeat(100)}`)[0]).toContain("no field is nested so deeply");
    const bomb = `app: a\n${Array.from({ length: 9 }, (_, i) => `k${i}: &a${i} [${Array.from({ length: 10 }, () => (i ? `*a${i - 1}` : "x")).join(",")}]`).join("\n")}`;
    expect(faults(bomb)[0]).toContain("more than 100000 values");
    expect(faults("app: a\nenv: &e {A: *e}")[0]).toContain("within what it stands for");
    expect(faults("app: a\n__proto__: {x: 1}\nconstructor: 1")).toHaveLength(2);
  });
  it("finds the line of what holds a field that it does not have", () => {
    expect(lineOf(good("app: a\nresources:\n  gpu: {count: 1}\n").lines, "resources.gpu.product")).toBe(3);
  });
  it("has a policy by which the replicas follow the load", () => {
    const f = good("app: a\nscaling: {min: 1, max: 4, metrics: [{type: inFlight, target: 8}], down: {window: 1m}}");
    expect(toJson(ScalingPolicySchema, f.scaling!)).toEqual({ min: 1, max: 4, metrics: [{ type: "TYPE_IN_FLIGHT", target: "8" }], down: { window: "60s" } });
  });
  it("can be each of the examples", () => {
    const dir = path.resolve("../../deployments/examples");
    const names = readdirSync(dir).filter((n) => /\.(yaml|json)$/.test(n));
    const read = names.filter((n) => /^app:/m.test(readFileSync(path.join(dir, n), "utf8")));
    expect(read.length).toBeGreaterThan(3);
    for (const n of read) expect([n, faults(readFileSync(path.join(dir, n), "utf8"))]).toEqual([n, []]);
  });
});
