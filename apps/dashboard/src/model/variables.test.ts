import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { AppSchema } from "../gen/windlass/v1/app_pb.js";
import { DeploymentSchema } from "../gen/windlass/v1/deployment_pb.js";
import { basis, variablesOf } from "./variables.js";

const versions = [create(DeploymentSchema, { version: 5 }), create(DeploymentSchema, { version: 4, live: true, spec: { env: { B: "2", A: "1" }, inheritedEnv: ["B"] } })];

it("builds on the version in flight, or else on the live one", () => {
  const of = (rolloutId: string) => basis(create(AppSchema, { latestVersion: 5, rolloutId }), versions)?.version;
  expect([of("rol_1"), of("")]).toEqual([5, 4]);
  expect(basis(create(AppSchema), [])).toBeUndefined();
});

it("tells variables of the environment from those of the app", () => {
  expect(variablesOf(versions[1])).toEqual([{ name: "A", value: "1", shared: false }, { name: "B", value: "2", shared: true }]);
  expect(variablesOf(undefined)).toEqual([]);
});
