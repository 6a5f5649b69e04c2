import { create } from "@bufbuild/protobuf";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { AppSchema, AppService } from "../gen/windlass/v1/app_pb.js";
import { EnvironmentSchema, EnvironmentService } from "../gen/windlass/v1/environment_pb.js";
import { WhoAmIResponseSchema } from "../gen/windlass/v1/access_pb.js";
import { Role, RolloutStatus } from "../gen/windlass/v1/common_pb.js";
import { PinSchema } from "../gen/windlass/v1/pin_pb.js";
import { RolloutSchema, RolloutService } from "../gen/windlass/v1/rollout_pb.js";
import { Feature, QuotaSchema, WorkspaceFeaturesSchema, WorkspaceService } from "../gen/windlass/v1/workspace_pb.js";
import type { Variable } from "../model/variables.js";
import { AskFeatures } from "./features.js";
import { As, type Session } from "../ui/session.js";
import { AskQuota } from "./quota.js";
import { Steer } from "./steer.js";
import { Dialog } from "./variables.js";
import { AskPin, AskUnpin } from "./versions.js";

const sent = vi.hoisted(() => [] as Record<string, unknown>[]);

vi.mock("../api/clients.js", async (original) => {
  const answer = (request: object) => {
    sent.push(request as Record<string, unknown>);
    return {};
  };
  const transport = createRouterTransport(({ service }) => {
    service(WorkspaceService, { setQuota: answer, setFeatures: answer });
    service(EnvironmentService, { updateEnvironment: answer });
    service(AppService, { setEnvironment: answer, cancel: answer, rollback: answer, pinVersion: answer, unpinVersion: answer });
    service(RolloutService, { promote: answer });
  });
  return { ...(await original<object>()), transport, apps: createClient(AppService, transport), rollouts: createClient(RolloutService, transport) };
});

afterEach(() => {
  cleanup();
  sent.length = 0;
});

const nothing = () => undefined;
const press = (name: string) => fireEvent.click(screen.getByRole("button", { name }));
const oneCall = async () => {
  await waitFor(() => expect(sent).toHaveLength(1));
  return sent[0];
};

it("limits are sent with the version that the dialog was opened with, so that a change of somebody else is kept", async () => {
  const quota = (gpus: bigint, resourceVersion: bigint) => create(QuotaSchema, { workspaceId: "ws_1", workspaceName: "acme", own: { gpus }, resourceVersion });
  const { rerender } = render(<AskQuota quota={quota(30n, 2n)} done={nothing} close={nothing} />);
  expect(screen.queryByText(/changed while this dialog was open/)).toBeNull();
  rerender(<AskQuota quota={quota(10n, 3n)} done={nothing} close={nothing} />);
  screen.getByText(/changed while this dialog was open/);
  fireEvent.change(screen.getByLabelText("Instances"), { target: { value: "20" } });
  press("Set the limits");
  expect(await oneCall()).toMatchObject({ own: { gpus: 30n, instances: 20n }, resourceVersion: 2n });
});

it("features are sent with the version that the dialog was opened with, so that a change of somebody else is kept", async () => {
  const features = (denied: Feature[], resourceVersion: bigint) => create(WorkspaceFeaturesSchema, { workspaceId: "ws_1", workspaceName: "acme", tier: "default", denied, resourceVersion });
  const dialog = (denied: Feature[], version: bigint) => <AskFeatures of={features(denied, version)} tiers={[]} done={nothing} close={nothing} />;
  const { rerender } = render(dialog([], 3n));
  rerender(dialog([Feature.ROLES], 4n));
  screen.getByText(/changed while this dialog was open/);
  fireEvent.change(screen.getByLabelText("canary"), { target: { value: "allowed" } });
  press("Set the features");
  expect(await oneCall()).toMatchObject({ allowed: [Feature.CANARY], denied: [], resourceVersion: 3n });
});

const app = create(AppSchema, { id: "app_1", name: "chat" });
const own = (value: string): Variable[] => [{ name: "LOG_LEVEL", value, shared: false }, { name: "TZ", value: "UTC", shared: true }];
const environment = (variables: Record<string, string>, resourceVersion: bigint) => create(EnvironmentSchema, { id: "env_1", name: "production", variables, resourceVersion });

it("a variable that somebody else changed while the dialog was open is not overwritten", async () => {
  const dialog = (value: string) => <Dialog asked={{ what: "set", variable: own("debug")[0]! }} app={app} own={own(value)} of={null} path="default/production" done={nothing} close={nothing} />;
  const { rerender } = render(dialog("debug"));
  rerender(dialog("warn"));
  fireEvent.change(screen.getByLabelText("Value"), { target: { value: "info" } });
  press("Set the variable");
  await screen.findByText(/LOG_LEVEL was changed while this dialog was open/);
  expect(sent).toEqual([]);
  rerender(dialog("debug"));
  press("Set the variable");
  expect(await oneCall()).toMatchObject({ app: "app_1", set: { LOG_LEVEL: "info" } });
});

it("a variable of the environment is set among those that the environment has by then", async () => {
  const dialog = (variables: Record<string, string>, version: bigint) => (
    <Dialog asked={{ what: "share", variable: { name: "TZ", value: "UTC", shared: true } }} app={app} own={[]} of={environment(variables, version)} path="default/production" done={nothing} close={nothing} />
  );
  const { rerender } = render(dialog({ TZ: "UTC" }, 1n));
  rerender(dialog({ TZ: "CET" }, 2n));
  fireEvent.change(screen.getByLabelText("Value"), { target: { value: "EST" } });
  press("Set the variable");
  await screen.findByText(/TZ was changed while this dialog was open/);
  rerender(dialog({ TZ: "UTC", REGISTRY: "registry.example" }, 3n));
  press("Set the variable");
  expect(await oneCall()).toMatchObject({ variables: { TZ: "EST", REGISTRY: "registry.example" }, resourceVersion: 3n });
});

it("a variable of the environment that is gone is not removed twice", async () => {
  const dialog = (variables: Record<string, string>) => (
    <Dialog asked={{ what: "unshare", variable: { name: "TZ", value: "UTC", shared: true } }} app={app} own={[]} of={environment(variables, 1n)} path="default/production" done={nothing} close={nothing} />
  );
  const { rerender } = render(dialog({ TZ: "UTC", A: "1" }));
  rerender(dialog({ A: "1" }));
  press("Remove the variable");
  await screen.findByText(/TZ was removed while this dialog was open/);
  rerender(dialog({ TZ: "UTC", A: "1" }));
  press("Remove the variable");
  expect(await oneCall()).toMatchObject({ variables: { A: "1" } });
});

const session: Session = { me: create(WhoAmIResponseSchema, { key: { role: Role.OWNER } }), leave: () => Promise.resolve(), lost: nothing };

it("a rollout is aborted only if it is still the one that the dialog was opened for", async () => {
  const steer = (id: string, version: number) => (
    <As session={session}>
      <Steer app={create(AppSchema, { id: "app_1", name: "chat", liveVersion: 1 })} rollout={create(RolloutSchema, { id, version, fromVersion: 1, status: RolloutStatus.RUNNING, progress: {} })} />
    </As>
  );
  const { rerender } = render(steer("ro_1", 2));
  press("Abort");
  rerender(steer("ro_2", 3));
  fireEvent.click(screen.getAllByRole("button", { name: "Abort" }).at(-1)!);
  expect(await oneCall()).toMatchObject({ app: "app_1", rolloutId: "ro_1" });
});

it("an app is rolled back only if the version is live that the dialog was opened for", async () => {
  const steer = (live: number) => (
    <As session={session}>
      <Steer app={create(AppSchema, { id: "app_1", name: "chat", liveVersion: live, previousVersion: live - 1 })} rollout={undefined} />
    </As>
  );
  const { rerender } = render(steer(5));
  press("Roll back to v4");
  rerender(steer(6));
  fireEvent.click(screen.getAllByRole("button", { name: "Roll back to v4" }).at(-1)!);
  expect(await oneCall()).toMatchObject({ app: "app_1", liveVersion: 5 });
});

const pin = (weight: number, resourceVersion: bigint) => create(PinSchema, { version: 3, weight, resourceVersion });

it("a pin is changed only if it is still as it was when the dialog was opened", async () => {
  const dialog = (now: ReturnType<typeof pin>) => <AskPin app={app} version={3} pin={now} now={now} close={nothing} />;
  const { rerender } = render(dialog(pin(10, 7n)));
  expect(screen.queryByText(/changed while this dialog was open/)).toBeNull();
  rerender(dialog(pin(40, 8n)));
  screen.getByText(/changed while this dialog was open/);
  fireEvent.change(screen.getByLabelText("Percent of the traffic"), { target: { value: "20" } });
  press("Change the pin");
  expect(await oneCall()).toMatchObject({ app: "app_1", version: 3, weight: 20, resourceVersion: 7n });
});

it("a version is pinned only if it is still without a pin when the dialog is confirmed", async () => {
  const { rerender } = render(<AskPin app={app} version={3} pin={undefined} now={undefined} close={nothing} />);
  rerender(<AskPin app={app} version={3} pin={undefined} now={pin(40, 8n)} close={nothing} />);
  screen.getByText(/changed while this dialog was open/);
  press("Pin v3");
  expect(await oneCall()).toMatchObject({ version: 3, weight: 10, resourceVersion: 0n });
});

it("a version is unpinned only if its pin is still as it was when the dialog was opened", async () => {
  const { rerender } = render(<AskUnpin app={app} pin={pin(10, 7n)} now={pin(10, 7n)} close={nothing} />);
  rerender(<AskUnpin app={app} pin={pin(40, 8n)} now={pin(40, 8n)} close={nothing} />);
  press("Unpin v3");
  expect(await oneCall()).toMatchObject({ version: 3, resourceVersion: 7n });
});
