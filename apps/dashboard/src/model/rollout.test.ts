import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { AppSchema } from "../gen/windlass/v1/app_pb.js";
import { RolloutStatus } from "../gen/windlass/v1/common_pb.js";
import { CheckProgress_State, RegionProgress_State, RolloutSchema, WaveProgress_State } from "../gen/windlass/v1/rollout_pb.js";
import { HistoryEntrySchema } from "../gen/windlass/v1/history_pb.js";
import { RegionTopologySchema } from "../gen/windlass/v1/deployment_pb.js";
import { actions, figures, gates, steps, trafficShare, waits } from "./rollout.js";

const now = 1_000_000;
const app = create(AppSchema, { name: "echo", liveVersion: 2, previousVersion: 1 });

type Init = Parameters<typeof create<typeof RolloutSchema>>[1];
const rollout = (init: Init) => create(RolloutSchema, { status: RolloutStatus.RUNNING, version: 3, fromVersion: 2, ...init });
const canary = (region: object, wave: object = {}, progress: object = {}) =>
  rollout({
    progress: {
      policy: { steps: [{ weight: 10, pause: "manual" }, { weight: 50, pause: "10m" }] },
      waves: [
        {
          state: WaveProgress_State.ROLLING,
          regions: [{ region: "us-east-1", state: RegionProgress_State.ROLLING, step: 1, steps: 2, replicas: 4, new: { ready: 1 }, ...region }],
          ...wave,
        },
      ],
      ...progress,
    },
  });
const names = (r: ReturnType<typeof rollout>) => actions(r, app).map((a) => a.name);

describe("why a rollout waits", () => {
  it("says what each region waits for", () => {
    expect(waits(canary({ waitsForPromotion: true }), app, now)).toEqual(["us-east-1 waits at step 1 of 2 until v3 is promoted."]);
    expect(waits(canary({ step: 2, stepUntil: 1_600_000n }), app, now)).toEqual([
      "us-east-1 serves at step 2 of 2 for the pause that the policy sets, which ends in 10 min.",
    ]);
    expect(waits(canary({ reason: "CrashLoop", message: "exit code 1" }), app, now)).toEqual([
      "us-east-1 waits for replicas of v3: 1 of 4 are ready. CrashLoop: exit code 1.",
    ]);
    const pool = create(AppSchema, { ...app, pooled: true });
    expect(waits(canary({ replicas: 100, new: { ready: 25 } }), pool, now)).toEqual(["us-east-1 waits for roles of v3: 25 of 100 % of the pool are ready."]);
    expect(waits(canary({ state: RegionProgress_State.SKIPPED }), app, now)[0]).toContain("out of reach");
    expect(waits(canary({ checks: [{ name: "errors", state: CheckProgress_State.HELD, message: "12 of 50 samples" }] }), app, now)).toEqual([
      "us-east-1: check errors is inconclusive: 12 of 50 samples.",
    ]);
  });

  it("says who paused it, and what freezes and gates want", () => {
    expect(waits(canary({ state: RegionProgress_State.MOVED }, {}, { paused: true, pausedBy: "ann", pausedWhy: "lunch" }), app, now)).toEqual(["Paused by ann: lunch."]);
    expect(waits(rollout({ hold: { freeze: "night", scope: "workspace", reason: "on call sleeps", until: 1_060_000n } }), app, now)).toEqual([
      "Freeze night of the workspace keeps it from starting: on call sleeps. It is looked at again in 1 min.",
    ]);
    const gated = rollout({ id: "rol_1", startApproval: { missing: "approval by a key of role owner" } });
    const start = "It waits for approval by a key of role owner before it starts.";
    expect(waits(gated, app, now)).toEqual([start]);
    const entry = (init: object) => create(HistoryEntrySchema, { what: "RolloutProtected", rolloutId: "rol_1", why: "it starts after approval, by the protection of the workspace: audits", ...init });
    expect(waits(gated, app, now, [entry({}), entry({ rolloutId: "rol_0", why: "x" }), entry({ what: "Approved", why: "y" })])).toEqual([
      start,
      "It starts after approval, by the protection of the workspace: audits.",
    ]);
    expect(waits(canary({ waitsForPromotion: true }, {}, { promotionHeld: true }), app, now)[0]).toContain("An earlier rollout went back");
  });

  it("falls back to the words of the control plane, and has none for a rollout that is over", () => {
    expect(waits(rollout({}), create(AppSchema, { message: "0 of 4 replicas" }), now)).toEqual(["0 of 4 replicas."]);
    expect(waits(rollout({ status: RolloutStatus.SUCCEEDED }), app, now)).toEqual([]);
  });
});

describe("what can be done", () => {
  it("offers what makes a difference now", () => {
    expect(names(canary({}))).toEqual(["pause", "abort"]);
    expect(names(canary({ waitsForPromotion: true }))).toEqual(["promote", "promote-full", "pause", "abort"]);
    expect(names(canary({}, {}, { paused: true }))).toEqual(["resume", "abort"]);
    expect(names(canary({ state: RegionProgress_State.FAILED }, {}, { paused: true }))).toEqual(["resume", "retry", "abort"]);
    expect(names(canary({}, {}, { goingBack: true }))).toEqual([]);
    expect(names(canary({ state: RegionProgress_State.MOVED }, { state: WaveProgress_State.BAKING }))).toEqual(["skip-bake", "pause", "abort"]);
    expect(names(rollout({ startApproval: { missing: "1 owner" } }))).toEqual(["approve", "abort"]);
    expect(names(rollout({ status: RolloutStatus.SUCCEEDED }))).toEqual(["rollback"]);
    expect(actions(undefined, create(AppSchema, { liveVersion: 1 }))).toEqual([]);
  });

  it("states the effect of each", () => {
    for (const a of actions(canary({ waitsForPromotion: true, approval: { missing: "1 owner" } }), app)) expect(a.effect.length, a.name).toBeGreaterThan(40);
    expect(actions(canary({}), app).find((a) => a.name === "abort")?.effect).toContain("back to v2");
    expect(gates(canary({ approval: { missing: "1 owner" } }))).toEqual(["step 1 in us-east-1"]);
  });
});

describe("the share of the traffic", () => {
  it("of a pin is its weight, and of the others a part of what pins leave", () => {
    const pinned = create(AppSchema, { pins: [{ deploymentId: "dep_1", version: 1, weight: 20, regions: [{ region: "us-east-1", weight: 20 }] }] });
    const share = (deploymentId: string, region: string, weight: number) => trafficShare(pinned, deploymentId, create(RegionTopologySchema, { region, weight }));
    expect([share("dep_1", "us-east-1", 20), share("dep_2", "us-east-1", 75), share("dep_3", "us-east-1", 25), share("dep_2", "eu-west-1", 100)]).toEqual([20, 60, 20, 100]);
  });
});

describe("steps and figures", () => {
  it("marks the step that is taken now", () => {
    const r = canary({ step: 2 });
    expect(steps(r, r.progress!.waves[0]!.regions[0]!)).toEqual([
      { label: "10 %", state: "done" },
      { label: "50 %", state: "now" },
    ]);
  });
  it("shows a figure beside the old version's", () => {
    const check = (c: object) => canary({ checks: [{ name: "x", ...c }] }).progress!.waves[0]!.regions[0]!.checks[0]!;
    expect(figures(check({ figure: 0.01234, oldFigure: 0.01, samples: 1520 }))).toBe("0.0123 of 1520 samples, old version 0.01");
    expect(figures(check({}))).toBe("no figure yet");
  });
});
