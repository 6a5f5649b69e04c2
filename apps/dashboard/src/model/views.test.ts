import { beforeEach, expect, it } from "vitest";
import { keepViews, readViews, sameFilter, withView } from "./views.js";

beforeEach(() => localStorage.clear());

it("keeps views for each workspace, by name", () => {
  const first = withView([], { name: "mine", search: { q: "chat" } });
  keepViews(localStorage, "acme", withView(withView(first, { name: "broken", search: { status: 4 } }), { name: "mine", search: { region: "eu" } }));
  expect(readViews(localStorage, "acme")).toEqual([{ name: "broken", search: { status: 4 } }, { name: "mine", search: { region: "eu" } }]);
  expect(readViews(localStorage, "other")).toEqual([]);
  keepViews(localStorage, "acme", []);
  expect(localStorage.length).toBe(0);
});

it("reads nothing that is no view", () => {
  for (const [kept, views] of [
    ["no json", []],
    ["{}", []],
    ['[1, null, {"name": "x"}, {"name": "a", "search": {"q": 1, "status": "4", "region": 2, "more": true}}]', [{ name: "a", search: { q: "1" } }]],
  ] as const) {
    localStorage.setItem("windlass-views-acme", kept);
    expect(readViews(localStorage, "acme")).toEqual(views);
  }
});

it("knows the view that is shown", () => {
  expect(sameFilter({ q: "a" }, { q: "a", status: undefined })).toBe(true);
  expect(sameFilter({ q: "a" }, { q: "a", region: "eu" })).toBe(false);
});
