import { createRootRoute, createRoute, createRouter, Link, redirect } from "@tanstack/react-router";
import { AppPage } from "./pages/app.js";
import { AppsPage } from "./pages/apps.js";
import { FleetPage } from "./pages/fleet.js";
import { RolloutPage } from "./pages/rollout.js";
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

const root = createRootRoute({ component: Shell, notFoundComponent: NotFound });

const index = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/fleet", replace: true });
  },
});

const fleet = createRoute({ getParentRoute: () => root, path: "/fleet", component: FleetPage });

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

export const router = createRouter({
  routeTree: root.addChildren([index, fleet, apps, app, rollout]),
  basepath: "/ui",
  scrollRestoration: true,
  defaultNotFoundComponent: NotFound,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
