// API keys, and what can be done about them.
import type { ApiKey } from "../gen/windlass/v1/access_pb.js";
import { Role } from "../gen/windlass/v1/common_pb.js";
import { ms } from "./time.js";
import type { Word } from "./words.js";

export function keyState(k: ApiKey, now: number): Word {
  if (k.revokedAt > 0n) return { text: "revoked", tone: "idle" };
  if (k.expiresAt > 0n && ms(k.expiresAt) <= now) return { text: "expired", tone: "idle" };
  if (k.expiresAt > 0n && ms(k.expiresAt) - now < 7 * 86_400_000) return { text: "expires soon", tone: "warn" };
  return { text: "good", tone: "good" };
}

/** Roles of the keys that a key of this role makes. */
export function rolesToGive(role: Role | undefined): Role[] {
  if (role === Role.OWNER) return [Role.VIEWER, Role.DEPLOYER, Role.OWNER];
  if (role === Role.OPERATOR) return [Role.OPERATOR];
  return [];
}

export const roleMay: Record<number, string> = {
  [Role.VIEWER]: "reads everything of the workspace but values of secrets",
  [Role.DEPLOYER]: "also deploys, scales, sets variables and secrets, rolls back",
  [Role.OWNER]: "also manages keys, projects, environments and regions, and deletes",
  [Role.OPERATOR]: "runs the platform: workspaces and shared regions",
};
