// What can be done about a version of an app, and what it comes to.
import type { App } from "../gen/windlass/v1/app_pb.js";
import type { Deployment } from "../gen/windlass/v1/deployment_pb.js";
import type { Freeze } from "../gen/windlass/v1/freeze_pb.js";
import { appPath } from "./fleet.js";

/** Whether a rollout is on its way to the version. */
const inFlight = (app: App, d: Deployment) => app.rolloutId !== "" && d.version === app.latestVersion && !d.live;

export const canRollBack = (app: App, d: Deployment) => !d.live && app.liveVersion > 0 && d.version < app.liveVersion;

export const canPin = (app: App, d: Deployment) => !d.live && app.liveVersion > 0 && !inFlight(app, d) && !app.pins.some((p) => p.version === d.version);

/** What a rollback to the version does, as the control plane's rules say. */
export function rollbackEffect(app: App, d: Deployment, withSteps: boolean, withSecrets: boolean): string[] {
  const v = `v${d.version}`;
  const out = [
    `Moves the app from v${app.liveVersion} to the configuration and variables of ${v}. While ${v} is retained it is made live again by weights alone; else a new version is made of it.`,
  ];
  if (app.rolloutId !== "") out.push(`The rollout to v${app.latestVersion}, which is in flight, is superseded.`);
  if (withSteps) out.push("It takes the steps, pauses, approvals, analysis and bake times of the app's policy, as a deploy does.");
  else if (!d.stable) out.push(`${v} never was stable: the way to it takes every step of the app's policy.`);
  else if (d.version === app.previousVersion) out.push(`${v} is the stable version before: it goes straight back, without steps, pauses, approvals, analysis and bake times.`);
  else out.push(`${v} was stable: it goes straight back, without steps, pauses, analysis and bake times. Approvals are waited for, because an older version than v${app.previousVersion} is asked for.`);
  out.push(withSecrets ? `Secrets go back to the versions that ${v} ran with: a key that was rotated since is the old one again.` : "Secrets stay at their newest versions.");
  return out;
}

/** Freezes of the app, of its project and of the workspace that are in force or will be, those in force first. */
export function freezesOf(app: App, all: Freeze[]): Freeze[] {
  const about = (f: Freeze) => (f.app !== "" ? f.app === appPath(app) : f.project === "" || f.project === app.projectName);
  return all.filter((f) => about(f) && (f.inForce || f.nextAt > 0n)).sort((a, b) => Number(b.inForce) - Number(a.inForce) || Number(a.nextAt - b.nextAt));
}
