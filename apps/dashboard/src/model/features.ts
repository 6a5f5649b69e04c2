// Features of app files, as `windlass workspace features` names them.
import { Feature, type WorkspaceFeatures } from "../gen/windlass/v1/workspace_pb.js";

/** multiRegion, from MULTI_REGION. */
export const featureName = (f: Feature) => (Feature[f] ?? String(f)).toLowerCase().replace(/_(.)/g, (_, c: string) => c.toUpperCase());

/** What an app's file uses. A feature of a later release has its name alone. */
export const featureAbout: Partial<Record<Feature, string>> = {
  [Feature.MULTI_REGION]: "more than one region",
  [Feature.AUTOSCALING]: "replicas that follow the load",
  [Feature.SCALE_TO_ZERO]: "hosts that keep requests while there is no replica",
  [Feature.CROSS_REGION]: "requests that another region answers",
  [Feature.CANARY]: "rollouts of the strategy canary",
  [Feature.BLUE_GREEN]: "rollouts of the strategy blueGreen",
  [Feature.ANALYSIS]: "rollouts that metrics judge",
  [Feature.SERVE]: "an engine and a model in the place of a command",
  [Feature.ROLES]: "several roles in a replica, or several hosts in an instance",
};

export const allFeatures: Feature[] = Object.values(Feature).filter((f): f is Feature => typeof f === "number" && f !== Feature.UNSPECIFIED);

export type FeatureRow = { feature: Feature; allowed: boolean; by: "tier" | "allowed" | "denied" };

/** All features that this page or the workspace knows. */
export function featureRows(w: WorkspaceFeatures): FeatureRow[] {
  const all = [...new Set([...allFeatures, ...w.features, ...w.tierFeatures, ...w.allowed, ...w.denied])].sort((a, b) => a - b);
  return all.map((feature) => ({ feature, allowed: w.features.includes(feature), by: w.denied.includes(feature) ? "denied" : w.allowed.includes(feature) ? "allowed" : "tier" }));
}
