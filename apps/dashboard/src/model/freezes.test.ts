import { describe, expect, it } from "vitest";
import { fieldTime, freezeEffect, parseWindows, scopeFields, scopeText } from "./freezes.js";

describe("freezes", () => {
  it("reads windows, and says which line is none", () => {
    expect(parseWindows("Fri 16:00 - Mon 08:00\n\n 22:00-06:00 ")).toEqual([
      { start: "Fri 16:00", end: "Mon 08:00" },
      { start: "22:00", end: "06:00" },
    ]);
    for (const wrong of ["Fri 16:00", "Fri 16:00 - 08:00", "24:00 - 06:00", "Friday 16:00 - Mon 08:00"]) expect(() => parseWindows(`22:00 - 06:00\n${wrong}`)).toThrow("Window 2");
  });

  it("states the effect", () => {
    const form = { scope: { kind: "workspace" as const, name: "" }, hold: false, from: 0, until: 0, weekly: "", zone: "" };
    expect(freezeEffect(form)).toContain("From now until somebody lifts it, no rollout of the workspace starts: deploys and changes of variables are refused.");
    const held = freezeEffect({ ...form, scope: { kind: "project", name: "search" }, hold: true, weekly: "22:00 - 06:00", zone: "Europe/London" });
    expect(held).toContain("within the windows (Europe/London), no rollout of project search starts: deploys are accepted, and their rollouts wait");
    expect(scopeFields({ kind: "app", name: "a/b/c" })).toEqual({ project: "", app: "a/b/c" });
    expect(scopeText({ project: "p", app: "" })).toBe("project p");
    expect(fieldTime("")).toBe(0);
    expect(fieldTime("2026-12-24T18:00")).toBe(new Date(2026, 11, 24, 18).getTime());
  });
});
