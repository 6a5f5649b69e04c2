import { expect, it } from "vitest";
import { labelsText, parseLabels } from "./labels.js";

it("labels are read as they were written", () => {
  const labels = { tier: "small", a: "b=c", "": "" };
  expect(labelsText({ tier: "small", a: "b=c" })).toBe("a=b=c\ntier=small");
  expect(parseLabels(" tier = small \n\na=b=c\nempty=")).toEqual({ tier: labels.tier, a: labels.a, empty: "" });
});

it("a line that is no label, and a name that comes twice, are refused", () => {
  expect(() => parseLabels("tier")).toThrow('"tier" is not NAME=VALUE');
  expect(() => parseLabels("=small")).toThrow("is not NAME=VALUE");
  expect(() => parseLabels("a=1\na=2")).toThrow("label a is there twice");
  expect(parseLabels("__proto__=1")).toEqual(Object.fromEntries([["__proto__", "1"]]));
});
