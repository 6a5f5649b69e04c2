import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { WatchSeriesResponseSchema } from "../gen/windlass/v1/series_pb.js";
import { addSeries, chartOf, newest, noSeries, regionAt, seconds } from "./series.js";

const step = 30_000;
const begin = 1_800_000_000_000;
const sample = (n: number, more: object = {}) => ({ at: BigInt(begin + n * step), spanMs: BigInt(step), ...more });
const add = (state: typeof noSeries, init: object) => addSeries(state, create(WatchSeriesResponseSchema, { stepMs: BigInt(step), ...init }));

describe("series", () => {
  it("adds up regions, and takes the highest of their times", () => {
    const state = add(noSeries, {
      reset: true, sentAt: BigInt(begin + step),
      regions: [
        { region: "eu", keptSince: 1n, samples: [sample(0, { requests: 60n, errors: 3n, latencyP95: 0.2, wanted: 2, ready: 2, queued: 1 }), sample(1, { spanMs: 10_000n, requests: 20n, errors: 0n })] },
        { region: "us", keptSince: 1n, samples: [sample(0, { requests: 30n, errors: 6n, latencyP95: 0.5, wanted: 3, ready: 1 })] },
      ],
    });
    const all = chartOf(state, ["eu", "us"]);
    expect(all.times).toHaveLength(121);
    expect(all.values.at(-2)).toEqual({ requests: 3, failed: 10, latency: 0.5, firstToken: null, queued: 1, wanted: 5, ready: 3 });
    expect(all.values.at(-1)).toMatchObject({ requests: 2, failed: 0, latency: null, ready: null });
    expect(newest(all)).toBe(120);
    expect(all.values[0]).toMatchObject({ requests: null });
    expect(all.missing.some((m) => m)).toBe(false);
    expect(regionAt(state, "us", begin).values.failed).toBe(20);
  });

  it("tells what is missing from what was not there yet", () => {
    let state = add(noSeries, {
      reset: true, sentAt: BigInt(begin + 20 * step),
      regions: [
        // The agent has kept samples for long, and the app came at step 10. Step 12 is a hole.
        { region: "eu", keptSince: 1n, samples: [10, 11, 13, 14, 15, 16, 17, 18, 19, 20].map((n) => sample(n, { ready: 1 })) },
        // The agent started at step 15, and says nothing since step 17.
        { region: "us", keptSince: BigInt(begin + 15 * step), samples: [15, 16].map((n) => sample(n, { ready: 1 })), problem: "region us does not answer" },
      ],
    });
    const at = (name: string) => chartOf(state, [name]).missing.flatMap((m, i) => (m ? [(chartOf(state, [name]).times[i]! - begin) / step] : []));
    expect(at("eu")).toEqual([12]);
    expect(at("us").filter((n) => n > 12)).toEqual([13, 14, 17]);
    expect(regionAt(state, "us", begin + 17 * step).missing).toBe(true);
    state = add(state, { sentAt: BigInt(begin + 21 * step), removedRegions: ["us"], regions: [{ region: "eu", keptSince: 1n, samples: [sample(20, { ready: 2 })] }] });
    expect([...state.regions.keys()]).toEqual(["eu"]);
    expect(regionAt(state, "eu", begin + 20 * step).values.ready).toBe(2);
  });

  it("does not follow a clock that is ahead", () => {
    const state = add(noSeries, {
      reset: true, sentAt: BigInt(begin + step),
      regions: [{ region: "eu", keptSince: 1n, samples: [sample(0, { ready: 2 })] }, { region: "us", keptSince: 1n, samples: [sample(240, { ready: 1 })] }],
    });
    expect(chartOf(state, ["eu", "us"]).values.at(-2)).toMatchObject({ ready: 2 });
  });

  it("keeps an hour", () => {
    let state = add(noSeries, { reset: true, regions: [{ region: "eu", samples: [sample(0)] }] });
    for (let n = 1; n < 300; n++) state = add(state, { regions: [{ region: "eu", samples: [sample(n)] }] });
    expect(state.regions.get("eu")?.samples.size).toBe(121);
    expect(chartOf(noSeries, []).times).toEqual([]);
    expect([seconds(0.25), seconds(2.5)]).toEqual(["250 ms", "2.50 s"]);
  });
});
