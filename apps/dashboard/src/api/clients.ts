import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { AccessService } from "../gen/windlass/v1/access_pb.js";
import { AppService } from "../gen/windlass/v1/app_pb.js";
import { ErrorDetailSchema, ErrorReason } from "../gen/windlass/v1/common_pb.js";
import { DeploymentService } from "../gen/windlass/v1/deployment_pb.js";
import { FleetService } from "../gen/windlass/v1/fleet_pb.js";
import { FreezeService } from "../gen/windlass/v1/freeze_pb.js";
import { RolloutService } from "../gen/windlass/v1/rollout_pb.js";
import { dashboardHeader } from "./session.js";

// No form and no simple request can set it: see the control plane's package api.
const marked: Interceptor = (next) => (req) => {
  req.header.set(...dashboardHeader);
  return next(req);
};

/** For clients of services that one page alone uses, which are made where that page is. */
export const transport = createConnectTransport({ baseUrl: window.location.origin, useBinaryFormat: true, interceptors: [marked] });

export const apps = createClient(AppService, transport);
export const access = createClient(AccessService, transport);
export const deployments = createClient(DeploymentService, transport);
export const fleet = createClient(FleetService, transport);
export const freezes = createClient(FreezeService, transport);
export const rollouts = createClient(RolloutService, transport);

export const isSignedOut = (error: unknown) => error instanceof ConnectError && error.code === Code.Unauthenticated;

/** What went wrong, what to do about it and the reason, as `windlass explain` takes it. */
export function explain(error: unknown): string {
  const failed = ConnectError.from(error);
  const text = failed.rawMessage || "the control plane did not answer";
  const detail = failed.findDetails(ErrorDetailSchema)[0];
  const fix = detail?.fix ?? "";
  const reason = detail?.reason ? ErrorReason[detail.reason] : "";
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return `${whole}${/[.!?]$/.test(whole) ? "" : "."}${fix ? ` ${fix}` : ""}${reason ? ` (${reason})` : ""}`;
}

/** A key that makes the retry of a change do nothing twice. */
export const mutation = () => ({ idempotencyKey: `ui_${crypto.randomUUID()}` });
