import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { DeploymentSchema, InstanceSchema } from "../gen/windlass/v1/deployment_pb.js";
import { DeploymentSpecSchema, Gang_Of, Layout, Pairing_Engine, PoolUpdate_Order, PoolUpdateSchema, RoleSpec_Slots } from "../gen/windlass/v1/spec_pb.js";
import { gangText, groupInstances, hasRoles, isPooled, keepsSlot, orderText, pairsText, poolRoles, replicaText, roleCounts, roleFacts, roleOrder, rolesOf, rolesText, sortInstances } from "./roles.js";

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

const split = create(DeploymentSpecSchema, {
  roles: [
    { name: "prefill", instances: 2, together: true },
    { name: "decode", entry: true, hosts: 2, slots: RoleSpec_Slots.STABLE, startsAfter: ["prefill"], together: true },
  ],
  pairing: { engine: Pairing_Engine.NIXL, minPromptBytes: 2000n },
  gang: { of: Gang_Of.UNIT, timeout: { seconds: 300n } },
});

it("says what each role is", () => {
  expect(roleFacts(split)).toEqual([
    { name: "prefill", entry: false, count: "2 in each replica", hosts: 1, facts: ["changes as one with decode"] },
    {
      name: "decode", entry: true, count: "1 in each replica", hosts: 2,
      facts: ["2 hosts each, ready and restarted as one", "stable slots: a successor takes the slot", "starts after prefill", "changes as one with prefill"],
    },
  ]);
  expect(replicaText(split)).toBe("a group of 3 instances");
  const pool = create(DeploymentSpecSchema, { layout: Layout.POOLED, roles: [{ name: "a" }, { name: "b" }] });
  expect(roleFacts(pool).map((r) => [r.name, r.entry, r.count])).toEqual([["a", true, "counted separately"], ["b", false, "counted separately"]]);
  expect(replicaText(pool)).toContain("one pool in each region");
  expect([hasRoles(split), hasRoles(pool), hasRoles(create(DeploymentSpecSchema, { roles: [{ name: "main" }] })), hasRoles(undefined)]).toEqual([true, true, false, false]);
  expect(hasRoles(create(DeploymentSpecSchema, { roles: [{ name: "shard", hosts: 2 }] }))).toBe(true);
  const versions = [create(DeploymentSchema, { version: 4, spec: split })];
  expect([keepsSlot(versions, 4, "decode"), keepsSlot(versions, 4, "prefill"), keepsSlot(versions, 5, "decode")]).toEqual([true, false, false]);
});

it("says which instances are pairs", () => {
  expect(pairsText(split)).toBe("prefill and decode of one replica, nixl. Prompts of fewer than 2000 bytes go to decode alone");
  const engine = (of: number) => pairsText(create(DeploymentSpecSchema, { layout: Layout.POOLED, pairing: { engine: of, prefill: "p", decode: "d" } }));
  expect(engine(Pairing_Engine.SGLANG)).toBe("p and d of one version, sglang");
  expect([engine(9), engine(Pairing_Engine.NONE), pairsText(undefined), pairsText(create(DeploymentSpecSchema))]).toEqual(["p and d of one version, engine 9", "", "", ""]);
});

it("says which pods start together", () => {
  const of = (gang: object, hosts = 1) => gangText(create(DeploymentSpecSchema, { roles: [{ name: "a", hosts }], gang }));
  expect(gangText(split)).toBe("All pods of an instance of several hosts start or none does. They try again if one has no node for 5m");
  expect(of({ of: Gang_Of.GROUP })).toBe("All pods of a replica start or none does. They try again if one has no node for 10m");
  expect(gangText(create(DeploymentSpecSchema, { roles: [{ name: "a", hosts: 2 }] }))).toContain("an instance of several hosts");
  expect([of({ of: Gang_Of.NONE }, 2), of({}), gangText(undefined)]).toEqual(["", "", ""]);
});

it("counts the roles of groups, too", () => {
  const roles = [{ role: "prefill", ready: 2, wanted: 4 }, { role: "decode", ready: 1, wanted: 2 }];
  const groups = create(DeploymentSchema, { version: 3, spec: split, regions: [{ region: "eu", roles }] });
  expect(rolesText(roleCounts([groups], 3, "eu"))).toBe("prefill 2 of 4, decode 1 of 2 ready");
  expect([poolRoles([groups], 3), roleCounts([groups], 4)]).toEqual([[], []]);
});
