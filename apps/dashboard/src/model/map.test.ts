import { describe, expect, it } from "vitest";
import { frameOf, groupPoints, placeTexts } from "./map.js";

describe("the part of the world that is shown", () => {
  it("is all of it for points that are far apart", () => {
    expect(frameOf([{ x: 20, y: 20 }, { x: 980, y: 400 }], 1000, 460)).toEqual({ scale: 1, x: 0, y: 0 });
    expect(frameOf([], 1000, 460)).toEqual({ scale: 1, x: 0, y: 0 });
  });
  it("is centered on points that are close, and ends where the world ends", () => {
    const frame = frameOf([{ x: 480, y: 120 }, { x: 520, y: 140 }], 1000, 460);
    expect(frame.scale).toBe(5);
    expect(frame.x + frame.scale * 500).toBe(500);
    expect(frame.y + frame.scale * 130).toBe(230);
    const corner = frameOf([{ x: 5, y: 5 }], 1000, 460);
    expect([corner.x, corner.y]).toEqual([0, 0]);
    const other = frameOf([{ x: 995, y: 455 }], 1000, 460);
    expect([other.x + other.scale * 1000, other.y + other.scale * 460]).toEqual([1000, 460]);
  });
});

describe("marks", () => {
  it("that are too close are one, in the middle", () => {
    const groups = groupPoints([{ x: 0, y: 0, n: 1 }, { x: 10, y: 0, n: 2 }, { x: 100, y: 0, n: 3 }], 38);
    expect(groups.map((g) => [g.x, g.members.map((m) => m.n)]).sort()).toEqual([[100, [3]], [5, [1, 2]]].sort());
  });
  it("are never closer than asked, and none is lost", () => {
    const points = Array.from({ length: 40 }, (_, i) => ({ x: (i * 37) % 200, y: (i * 53) % 120 }));
    const groups = groupPoints(points, 38);
    expect(groups.flatMap((g) => g.members)).toHaveLength(40);
    for (const a of groups) for (const b of groups) if (a !== b) expect(Math.hypot(a.x - b.x, a.y - b.y)).toBeGreaterThanOrEqual(38);
  });
});

it("texts cover neither marks nor each other, and stay in view", () => {
  const text = { width: 60, height: 20 };
  // The first has room to its right. The second has none there, nor to its left, but below.
  expect(placeTexts([{ x: 100, y: 50, ...text }, { x: 250, y: 50, ...text }, { x: 20, y: 17, width: 400, height: 20 }], 17, { width: 300, height: 100 })).toEqual([
    { left: 121, top: 40, ...text },
    { left: 220, top: 71, ...text },
    null,
  ]);
});
