// Variables of an app, and where they come from.
import type { App } from "../gen/windlass/v1/app_pb.js";
import type { Deployment } from "../gen/windlass/v1/deployment_pb.js";

export type Variable = { name: string; value: string; shared: boolean };

/** The version on which a change of a variable builds: the one in flight, or else the live one. */
export function basis(app: App, versions: Deployment[]): Deployment | undefined {
  const inFlight = app.rolloutId === "" ? undefined : versions.find((d) => d.version === app.latestVersion);
  return inFlight ?? versions.find((d) => d.live);
}

/** Variables of a version by name, and whether the environment gave them. */
export function variablesOf(d: Deployment | undefined): Variable[] {
  const shared = new Set(d?.spec?.inheritedEnv);
  return Object.entries(d?.spec?.env ?? {})
    .map(([name, value]) => ({ name, value, shared: shared.has(name) }))
    .sort((a, b) => a.name.localeCompare(b.name));
}
