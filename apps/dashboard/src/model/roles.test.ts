import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { DeploymentSchema, InstanceSchema } from "../gen/windlass/v1/deployment_pb.js";
import { groupInstances, roleOrder, rolesOf, sortInstances } from "./roles.js";

const version = create(DeploymentSchema, { regions: [{ region: "eu", roles: [{ role: "prefill", entry: true }, { role: "decode" }] }, { region: "us" }] });
const instance = (role: string, group: number, slot = 0, more: object = {}) => create(InstanceSchema, { id: `${role}${group}${slot}`, region: "eu", version: 2, role, group, slot, ...more });

it("has the roles of a region in the order of the spec, each once", () => {
  expect(rolesOf([version, version], "eu").map((r) => [r.role, r.entry])).toEqual([["prefill", true], ["decode", false]]);
  expect(rolesOf([version], "us")).toEqual([]);
  expect(roleOrder([version, version])).toEqual(["prefill", "decode"]);
});

it("keeps the instances of a replica together, roles in the order of the spec", () => {
  const sorted = sortInstances([instance("decode", 0), instance("prefill", 1), instance("prefill", 0, 1), instance("prefill", 0), instance("main", 0, 0, { version: 3 })], ["prefill", "decode"]);
  expect(groupInstances(sorted).map((g) => [g.key, g.instances.map((i) => i.id)])).toEqual([
    ["eu/3/0", ["main00"]], ["eu/2/0", ["prefill00", "prefill01", "decode00"]], ["eu/2/1", ["prefill10"]],
  ]);
});
