import { createRootRoute, createRoute, createRouter, lazyRouteComponent, Link, redirect, type ErrorComponentProps } from "@tanstack/react-router";
import { explain } from "./api/clients.js";
import { AppPage } from "./pages/app.js";
import { AppsPage } from "./pages/apps.js";
import { FleetPage } from "./pages/fleet.js";
import { RolloutPage } from "./pages/rollout.js";
import { Loading } from "./ui/pieces.js";
import { Shell } from "./ui/shell.js";

function NotFound() {
  return (
    <section className="panel">
      <div className="empty">
        <h1>There is no such page</h1>
        <Link to="/apps">Show all apps</Link>
      </div>
    </section>
  );
}

/** A page whose script could not be loaded, or that failed. */
function Broken({ error, reset }: ErrorComponentProps) {
  return (
    <section className="panel">
      <div className="empty">
        <h1>The page could not be shown</h1>
        <p className="note bad" role="alert">
          {explain(error)}
        </p>
        <div className="buttons">
          <button type="button" className="button" onClick={reset}>
            Try again
          </button>
          <button type="button" className="button" onClick={() => window.location.reload()}>
            Load the page anew
          </button>
        </div>
      </div>
    </section>
  );
}

const root = createRootRoute({ component: Shell, notFoundComponent: NotFound });

const index = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/fleet", replace: true });
  },
});

const fleet = createRoute({ getParentRoute: () => root, path: "/fleet", component: FleetPage });

const region = createRoute({ getParentRoute: () => root, path: "/fleet/$region", component: lazyRouteComponent(() => import("./pages/region.js"), "RegionPage") });

export type AppsSearch = { q?: string | undefined; status?: number | undefined; region?: string | undefined };

const apps = createRoute({
  getParentRoute: () => root,
  path: "/apps",
  component: AppsPage,
  validateSearch: (raw: Record<string, unknown>): AppsSearch => {
    const out: AppsSearch = {};
    if (typeof raw.q === "string" || typeof raw.q === "number") out.q = String(raw.q).slice(0, 200);
    if (typeof raw.status === "number") out.status = raw.status;
    if (typeof raw.region === "string") out.region = raw.region;
    return out;
  },
});

const app = createRoute({ getParentRoute: () => root, path: "/apps/$project/$environment/$name", component: AppPage });

const rollout = createRoute({
  getParentRoute: () => root,
  path: "/apps/$project/$environment/$name/rollouts/$rollout",
  component: RolloutPage,
});

export type VersionsSearch = { from?: number | undefined; to?: number | undefined };

const versions = createRoute({
  getParentRoute: () => root,
  path: "/apps/$project/$environment/$name/versions",
  component: lazyRouteComponent(() => import("./pages/versions.js"), "VersionsPage"),
  validateSearch: (raw: Record<string, unknown>): VersionsSearch => {
    const out: VersionsSearch = {};
    if (Number.isSafeInteger(raw.from)) out.from = Number(raw.from);
    if (Number.isSafeInteger(raw.to)) out.to = Number(raw.to);
    return out;
  },
});

const plan = createRoute({ getParentRoute: () => root, path: "/plan", component: lazyRouteComponent(() => import("./pages/plan.js"), "PlanPage") });

const keys = createRoute({ getParentRoute: () => root, path: "/keys", component: lazyRouteComponent(() => import("./pages/keys.js"), "KeysPage") });

const members = createRoute({ getParentRoute: () => root, path: "/members", component: lazyRouteComponent(() => import("./pages/members.js"), "MembersPage") });

export type AuditSearch = { who?: string | undefined; call?: string | undefined; hours?: number | undefined };

const audit = createRoute({
  getParentRoute: () => root,
  path: "/audit",
  component: lazyRouteComponent(() => import("./pages/audit.js"), "AuditPage"),
  validateSearch: (raw: Record<string, unknown>): AuditSearch => {
    const out: AuditSearch = {};
    if (typeof raw.who === "string" || typeof raw.who === "number") out.who = String(raw.who).slice(0, 200);
    if (typeof raw.call === "string" || typeof raw.call === "number") out.call = String(raw.call).slice(0, 200);
    if (typeof raw.hours === "number" && raw.hours > 0) out.hours = raw.hours;
    return out;
  },
});

const quota = createRoute({ getParentRoute: () => root, path: "/quota", component: lazyRouteComponent(() => import("./pages/quota.js"), "QuotaPage") });

const presets = createRoute({ getParentRoute: () => root, path: "/presets", component: lazyRouteComponent(() => import("./pages/presets.js"), "PresetsPage") });

export type PresetSearch = { app?: string | undefined; engine?: string | undefined };

const preset = createRoute({
  getParentRoute: () => root,
  path: "/presets/$preset",
  component: lazyRouteComponent(() => import("./pages/presets.js"), "PresetPage"),
  validateSearch: (raw: Record<string, unknown>): PresetSearch => {
    const out: PresetSearch = {};
    for (const name of ["app", "engine"] as const) if (typeof raw[name] === "string" || typeof raw[name] === "number") out[name] = String(raw[name]).slice(0, 256);
    return out;
  },
});

const features = createRoute({ getParentRoute: () => root, path: "/features", component: lazyRouteComponent(() => import("./pages/features.js"), "FeaturesPage") });

const workspaces = createRoute({ getParentRoute: () => root, path: "/workspaces", component: lazyRouteComponent(() => import("./pages/workspaces.js"), "WorkspacesPage") });

const workspace = createRoute({
  getParentRoute: () => root,
  path: "/workspaces/$workspace",
  component: lazyRouteComponent(() => import("./pages/workspaces.js"), "WorkspacePage"),
});

const hosts = createRoute({
  getParentRoute: () => root,
  path: "/apps/$project/$environment/$name/hosts",
  component: lazyRouteComponent(() => import("./pages/hosts.js"), "HostsPage"),
});

const variables = createRoute({
  getParentRoute: () => root,
  path: "/apps/$project/$environment/$name/variables",
  component: lazyRouteComponent(() => import("./pages/variables.js"), "VariablesPage"),
});

const freezesPage = createRoute({ getParentRoute: () => root, path: "/freezes", component: lazyRouteComponent(() => import("./pages/freezes.js"), "FreezesPage") });

const notifications = createRoute({ getParentRoute: () => root, path: "/notifications", component: lazyRouteComponent(() => import("./pages/notifications.js"), "NotificationsPage") });

export type LoadSearch = { region?: string | undefined };

const load = createRoute({
  getParentRoute: () => root,
  path: "/apps/$project/$environment/$name/load",
  component: lazyRouteComponent(() => import("./pages/load.js"), "LoadPage"),
  validateSearch: (raw: Record<string, unknown>): LoadSearch => (typeof raw.region === "string" ? { region: raw.region.slice(0, 63) } : {}),
});

const chat = createRoute({
  getParentRoute: () => root,
  path: "/apps/$project/$environment/$name/chat",
  component: lazyRouteComponent(() => import("./pages/chat.js"), "ChatPage"),
});

export type LogsSearch = {
  instance?: string | undefined;
  region?: string | undefined;
  role?: string | undefined;
  version?: number | undefined;
  minutes?: number | undefined;
  grep?: string | undefined;
};

const logs = createRoute({
  getParentRoute: () => root,
  path: "/apps/$project/$environment/$name/logs",
  component: lazyRouteComponent(() => import("./pages/logs.js"), "LogsPage"),
  validateSearch: (raw: Record<string, unknown>): LogsSearch => {
    const out: LogsSearch = {};
    for (const name of ["instance", "region", "role", "grep"] as const) if (typeof raw[name] === "string" || typeof raw[name] === "number") out[name] = String(raw[name]).slice(0, 256);
    for (const name of ["version", "minutes"] as const) if (Number.isSafeInteger(raw[name]) && Number(raw[name]) > 0) out[name] = Number(raw[name]);
    return out;
  },
});

export const router = createRouter({
  routeTree: root.addChildren([index, fleet, region, apps, app, rollout, versions, plan, keys, members, audit, quota, hosts, variables, load, chat, logs, freezesPage, notifications, presets, preset, features, workspaces, workspace]),
  basepath: "/ui",
  scrollRestoration: true,
  defaultPendingComponent: () => <Loading what="the page" />,
  defaultErrorComponent: Broken,
  defaultNotFoundComponent: NotFound,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
