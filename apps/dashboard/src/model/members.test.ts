import { expect, it } from "vitest";
import { Role } from "../gen/windlass/v1/common_pb.js";
import { conditionText, memberState, parseConditions, rolesOfRules, ruleFor } from "./members.js";

it("conditions are read line by line, and a wrong one is named", () => {
  expect(parseConditions(" groups=ml \n\nref=refs/heads/a=b")).toEqual([
    { claim: "groups", value: "ml" },
    { claim: "ref", value: "refs/heads/a=b" },
  ]);
  expect(() => parseConditions("groups")).toThrow('"groups" is not claim=value');
  expect(() => parseConditions("=x")).toThrow("is not claim=value");
  expect(() => parseConditions("x=")).toThrow("is not claim=value");
  expect(() => parseConditions("\n")).toThrow("a rule needs a condition");
  expect(conditionText({ claim: "groups", value: "ml" })).toBe("groups=ml");
});

it("a member's state is its role, unless it cannot call", () => {
  expect(memberState({ removedAt: 0n, role: Role.DEPLOYER })).toEqual({ text: "deployer", tone: "good" });
  expect(memberState({ removedAt: 0n, role: Role.UNSPECIFIED }).text).toBe("no rule matches");
  expect(memberState({ removedAt: 1n, role: Role.OWNER }).text).toBe("removed");
});

it("owners give roles of the workspace, and operators the role operator", () => {
  expect(rolesOfRules(Role.OWNER)).toEqual([Role.VIEWER, Role.DEPLOYER, Role.OWNER]);
  expect(rolesOfRules(Role.OPERATOR)).toEqual([Role.OPERATOR]);
  expect(rolesOfRules(Role.DEPLOYER)).toEqual([]);
  expect(ruleFor({ issuer: "" })).toBe("people");
  expect(ruleFor({ issuer: "https://ci.example" })).toBe("services of https://ci.example");
});
