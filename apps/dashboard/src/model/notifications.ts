// Endpoints of notifications and deliveries, in words.
import { NotificationDelivery_State, NotificationFormat, NotificationKind, type NotificationDelivery, type NotificationEndpoint } from "../gen/windlass/v1/notification_pb.js";
import type { Word } from "./words.js";

/** Kinds that an endpoint can have, with the names of `windlass notify set --on`. */
export const kindNames: [NotificationKind, string][] = [
  [NotificationKind.ROLLOUT_FAILED, "failed"],
  [NotificationKind.ROLLED_BACK, "rolled-back"],
  [NotificationKind.APPROVAL_NEEDED, "approval-needed"],
  [NotificationKind.START_HELD, "held"],
  [NotificationKind.REGION_UNREACHABLE, "region-unreachable"],
  [NotificationKind.REGION_BACK, "region-back"],
];

export const kindName = (k: NotificationKind) => (k === NotificationKind.TEST ? "test" : (kindNames.find(([kind]) => kind === k)?.[1] ?? "another kind"));

export const kindsText = (kinds: NotificationKind[]) => (kindNames.every(([k]) => kinds.includes(k)) ? "all" : kinds.map(kindName).join(", "));

export const formatName = (f: NotificationFormat) => (f === NotificationFormat.SLACK ? "Slack" : "CloudEvents");

export function deliveryState(s: NotificationDelivery_State): Word {
  switch (s) {
    case NotificationDelivery_State.DELIVERED:
      return { text: "delivered", tone: "good" };
    case NotificationDelivery_State.DEAD:
      return { text: "dead", tone: "bad" };
    default:
      return { text: "pending", tone: "busy" };
  }
}

/** What a delivery is about. */
export function subject(d: NotificationDelivery): string {
  if (d.events > 1) return `${d.events} events of ${d.apps} apps`;
  if (d.app) return d.version > 0 ? `${d.app} v${d.version}` : d.app;
  return d.region ? `region ${d.region}, ${d.apps} apps` : "";
}

/** What removing the endpoint does. */
export const removeEffect = (e: NotificationEndpoint) =>
  `Nothing is sent to ${e.origin} any more.${e.pending + e.dead > 0n ? ` ${e.pending} pending and ${e.dead} dead deliveries are deleted with it.` : ""} Another endpoint of this name gets another signing secret. It cannot be undone.`;
