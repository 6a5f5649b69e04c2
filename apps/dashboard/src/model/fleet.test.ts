import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { apply } from "../api/fleet.js";
import { AppSchema } from "../gen/windlass/v1/app_pb.js";
import { AppStatus, RegionStatus } from "../gen/windlass/v1/common_pb.js";
import { WatchFleetResponseSchema } from "../gen/windlass/v1/fleet_pb.js";
import { GpuCapacitySchema, RegionSchema } from "../gen/windlass/v1/region_pb.js";
import { filterApps, gpus, healthOf, lag, noFilter, sortRegions, sumGpus, worstTone } from "./fleet.js";

const app = (name: string, more: object = {}) =>
  create(AppSchema, { id: `app_${name}`, name, projectName: "default", environmentName: "production", status: AppStatus.READY, ...more });

describe("the fleet's stream", () => {
  const respond = (init: object) => create(WatchFleetResponseSchema, init);
  it("puts changes on top, and forgets all at a reset", () => {
    let d = apply({ regions: new Map(), apps: new Map() }, respond({ reset: true, apps: [app("a"), app("b")], regions: [{ id: "r1", name: "eu" }] }));
    d = apply(d, respond({ apps: [app("b", { message: "new" })], removedApps: ["app_a"] }));
    expect([...d.apps.values()].map((a) => [a.name, a.message])).toEqual([["b", "new"]]);
    expect(d.regions.size).toBe(1);
    d = apply(d, respond({ reset: true }));
    expect(d.apps.size + d.regions.size).toBe(0);
  });
});

describe("apps", () => {
  it("are found by every word of the search", () => {
    const apps = [app("chat", { regions: ["us-east-1"] }), app("embed", { status: AppStatus.FAILED, message: "CrashLoop in eu-west-1", regions: ["eu-west-1"] })];
    const found = (change: object) => filterApps(apps, { ...noFilter, ...change }).map((a) => a.name);
    expect(found({})).toEqual(["chat", "embed"]);
    expect(found({ text: "production CRASH" })).toEqual(["embed"]);
    expect(found({ text: "production none" })).toEqual([]);
    expect(found({ status: AppStatus.READY })).toEqual(["chat"]);
    expect(found({ region: "eu-west-1" })).toEqual(["embed"]);
  });
});

describe("regions", () => {
  it("that need a look come first", () => {
    const r = (name: string, status: RegionStatus) => create(RegionSchema, { name, status });
    const sorted = sortRegions([r("b", RegionStatus.CONNECTED), r("a", RegionStatus.CONNECTED), r("c", RegionStatus.PENDING), r("z", RegionStatus.UNREACHABLE)]);
    expect(sorted.map((x) => x.name)).toEqual(["z", "a", "b", "c"]);
  });
  it("tell how far their agent is behind", () => {
    expect(lag(create(RegionSchema, { revision: 9n, receivedRevision: 7n }))).toBe(2);
    expect(lag(create(RegionSchema, { revision: 7n, receivedRevision: 9n }))).toBe(0);
  });
  it("tell GPUs that are used, free, or away with their hosts", () => {
    expect(gpus(create(GpuCapacitySchema, { allocatable: 16, requested: 6, free: 8, largestFree: 4 }))).toMatchObject({ used: 6, free: 8, away: 2, largest: 4 });
  });
});

describe("a region's mark", () => {
  const region = (more: object) => create(RegionSchema, { status: RegionStatus.CONNECTED, revision: 9n, receivedRevision: 9n, ...more });
  const pools = [create(GpuCapacitySchema, { allocatable: 8, requested: 5, free: 3 }), create(GpuCapacitySchema, { allocatable: 4, requested: 1, free: 2 })];
  it("tells apart health, and a feed that is behind", () => {
    expect([region({}), region({ receivedRevision: 7n }), region({ status: RegionStatus.UNREACHABLE, receivedRevision: 7n }), region({ status: RegionStatus.PENDING })].map((r) => healthOf(r).tone)).toEqual(["good", "warn", "bad", "idle"]);
  });
  it("has the worst tone of several regions", () => {
    expect(worstTone(["good", "bad", "warn"])).toBe("bad");
    expect(worstTone(["good", "idle"])).toBe("idle");
    expect(worstTone(["good"])).toBe("good");
  });
  it("sums GPUs of all pools, of which none are free out of reach", () => {
    expect(sumGpus(region({ gpus: pools }))).toEqual({ used: 6, free: 5, total: 12 });
    expect(sumGpus(region({ gpus: pools, status: RegionStatus.UNREACHABLE }))).toEqual({ used: 6, free: 0, total: 12 });
  });
});
