import { expect, it } from "vitest";
import { placeOf } from "./places.js";

const at = (name: string, labels: Record<string, string> = {}) => {
  const place = placeOf({ name, labels });
  return place ? [place.latitude, place.longitude] : undefined;
};

it("a region is where its labels say, or else where the cloud's region of that name is", () => {
  expect(at("us-east-1")).toEqual([39, -77.5]);
  expect(at("us-east-1", { latitude: "52.4", longitude: "-4.9" })).toEqual([52.4, -4.9]);
  expect(at("basement", { latitude: "0", longitude: "0" })).toEqual([0, 0]);
  expect(at("basement")).toBeUndefined();
});

it("a name may have words before and after the name of the cloud's region, and the longest name counts", () => {
  expect(at("aws-us-east-1-b")).toEqual(at("us-east-1"));
  expect(at("prod-westeurope")).toEqual([52.4, 4.9]);
  expect(at("europe-west12")).toEqual([45.1, 7.7]);
  expect(at("us-west1")).not.toEqual(at("us-west-1"));
  expect(at("us-east-17")).toBeUndefined();
});

it("labels that are no degrees, or only one of the two, do not count", () => {
  for (const labels of [{ latitude: "north", longitude: "4" }, { latitude: "52.4" }, { latitude: "91", longitude: "4" }, { latitude: "", longitude: "" }, { latitude: "1", longitude: "181" }] as Record<string, string>[]) {
    expect(at("basement", labels)).toBeUndefined();
    expect(at("us-east-1", labels)).toEqual([39, -77.5]);
  }
});
