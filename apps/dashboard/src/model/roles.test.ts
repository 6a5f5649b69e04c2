import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { DeploymentSchema, InstanceSchema } from "../gen/windlass/v1/deployment_pb.js";
import { Layout, PoolUpdate_Order, PoolUpdateSchema } from "../gen/windlass/v1/spec_pb.js";
import { groupInstances, isPooled, orderText, poolRoles, roleOrder, rolesOf, rolesText, sortInstances } from "./roles.js";

const version = create(DeploymentSchema, { regions: [{ region: "eu", roles: [{ role: "prefill", entry: true }, { role: "decode" }] }, { region: "us" }] });
const instance = (role: string, group: number, slot = 0, more: object = {}) => create(InstanceSchema, { id: `${role}${group}${slot}`, region: "eu", version: 2, role, group, slot, ...more });

it("has the roles of a region in the order of the spec, each once", () => {
  expect(rolesOf([version, version], "eu").map((r) => [r.role, r.entry])).toEqual([["prefill", true], ["decode", false]]);
  expect(rolesOf([version], "us")).toEqual([]);
  expect(roleOrder([version, version])).toEqual(["prefill", "decode"]);
});

it("counts the instances of a pool by role, in a region and in all", () => {
  const roles = (prefill: number) => [{ role: "prefill", ready: prefill, wanted: 8 }, { role: "decode", ready: 1, wanted: 2 }];
  const pool = create(DeploymentSchema, { version: 3, spec: { layout: Layout.POOLED }, regions: [{ region: "eu", roles: roles(8) }, { region: "us", roles: roles(5) }] });
  expect(rolesText(poolRoles([version, pool], 3, "us"))).toBe("prefill 5 of 8, decode 1 of 2 ready");
  expect(rolesText(poolRoles([version, pool], 3))).toBe("prefill 13 of 16, decode 2 of 4 ready");
  expect([isPooled(pool), isPooled(version), isPooled(undefined)]).toEqual([true, false, false]);
  expect([poolRoles([version, pool], 3, "asia"), poolRoles([version], 3), poolRoles([version], 0, "eu")]).toEqual([[], [], []]);
});

it("names the order of a pool's roles", () => {
  expect(orderText(undefined)).toBe("coherent");
  expect(orderText(create(PoolUpdateSchema, { order: PoolUpdate_Order.INTERLEAVED }))).toBe("interleaved");
  expect(orderText(create(PoolUpdateSchema, { order: PoolUpdate_Order.SEQUENTIAL, sequence: ["decode", "prefill"] }))).toBe("sequential: decode, prefill");
  expect(orderText(create(PoolUpdateSchema, { order: 9 as PoolUpdate_Order }))).toBe("order 9");
});

it("keeps the instances of a replica together, roles in the order of the spec", () => {
  const sorted = sortInstances([instance("decode", 0), instance("prefill", 1), instance("prefill", 0, 1), instance("prefill", 0), instance("main", 0, 0, { version: 3 })], ["prefill", "decode"]);
  expect(groupInstances(sorted).map((g) => [g.key, g.instances.map((i) => i.id)])).toEqual([
    ["eu/3/0", ["main00"]], ["eu/2/0", ["prefill00", "prefill01", "decode00"]], ["eu/2/1", ["prefill10"]],
  ]);
});
