import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { PlanStep_Kind, PlanStepSchema } from "../gen/windlass/v1/plan_pb.js";
import { foldSteps, stepText } from "./plan.js";

const move = (old: number, fresh: number, more: object = {}) =>
  create(PlanStepSchema, { kind: PlanStep_Kind.MOVE, versions: [{ version: 1, replicas: old, weight: old }, { version: 2, replicas: fresh, weight: fresh }], ...more });

it("says that replicas of a pool are percent", () => {
  expect(stepText(move(75, 25))).toBe("75 of v1 (75 %), 25 of v2 (25 %)");
  expect(stepText(move(75, 25), true)).toBe("75 % of the pool as v1 (75 %), 25 % of the pool as v2 (25 %)");
  expect(stepText(move(0, 100, { inPlace: true }), true)).toBe("nothing of v1 (0 %), the pool of v2 (100 %), in place");
  expect(foldSteps([move(0, 100)], true)[0]?.text).toContain("the pool of v2");
});
