// Members and the rules that give them roles.
import { Role } from "../gen/windlass/v1/common_pb.js";
import type { ClaimCondition, Member, SignInRule } from "../gen/windlass/v1/member_pb.js";
import { roleName, type Word } from "./words.js";

export function memberState(m: Pick<Member, "removedAt" | "role">): Word {
  if (m.removedAt > 0n) return { text: "removed", tone: "idle" };
  if (m.role === Role.UNSPECIFIED) return { text: "no rule matches", tone: "warn" };
  return { text: roleName(m.role), tone: "good" };
}

/** Roles that a rule may give, by the role of the person who sets it. */
export function rolesOfRules(role: Role | undefined): Role[] {
  if (role === Role.OWNER) return [Role.VIEWER, Role.DEPLOYER, Role.OWNER];
  if (role === Role.OPERATOR) return [Role.OPERATOR];
  return [];
}

export const conditionText = (c: Pick<ClaimCondition, "claim" | "value">) => `${c.claim}=${c.value}`;

/** Reads conditions, one on each line, as claim=value. */
export function parseConditions(text: string): { claim: string; value: string }[] {
  const out: { claim: string; value: string }[] = [];
  for (const line of text.split("\n").map((l) => l.trim())) {
    if (!line) continue;
    const at = line.indexOf("=");
    if (at < 1 || at === line.length - 1) throw new Error(`the condition "${line}" is not claim=value, such as groups=ml-team`);
    out.push({ claim: line.slice(0, at).trim(), value: line.slice(at + 1).trim() });
  }
  if (out.length === 0) throw new Error("a rule needs a condition, such as groups=ml-team");
  return out;
}

export const ruleFor = (r: Pick<SignInRule, "issuer">) => (r.issuer ? `services of ${r.issuer}` : "people");
