import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { Feature, WorkspaceFeaturesSchema } from "../gen/windlass/v1/workspace_pb.js";
import { allFeatures, featureAbout, featureName, featureRows } from "./features.js";

it("names features as app files do, and says of each what it is", () => {
  expect([Feature.MULTI_REGION, Feature.SERVE, 99 as Feature].map(featureName)).toEqual(["multiRegion", "serve", "99"]);
  expect(allFeatures.filter((f) => !featureAbout[f])).toEqual([]);
});

it("says of each feature whether it may be used and what decides that, also of a later release's", () => {
  const w = create(WorkspaceFeaturesSchema, { features: [Feature.CANARY, Feature.SERVE, 99 as Feature], tierFeatures: [Feature.CANARY, Feature.ROLES, 99 as Feature], allowed: [Feature.SERVE], denied: [Feature.ROLES] });
  const rows = featureRows(w);
  expect(rows.map((r) => r.feature)).toEqual([...allFeatures, 99]);
  expect(rows.filter((r) => r.allowed || r.by !== "tier")).toEqual([
    { feature: Feature.CANARY, allowed: true, by: "tier" }, { feature: Feature.SERVE, allowed: true, by: "allowed" },
    { feature: Feature.ROLES, allowed: false, by: "denied" }, { feature: 99, allowed: true, by: "tier" },
  ]);
});
