// Filters of the list of apps that a person gave a name. This browser keeps them, for each workspace.
import type { AppsSearch } from "../router.js";

export type View = { name: string; search: AppsSearch };

const maxViews = 30;
export const maxName = 40;
const keyOf = (workspace: string) => `windlass-views-${workspace}`;

/** The search of an address without what is not a filter; also what another release of the page kept. */
export function filterOf(raw: Record<string, unknown>): AppsSearch {
  const out: AppsSearch = {};
  if ((typeof raw.q === "string" && raw.q !== "") || typeof raw.q === "number") out.q = String(raw.q).slice(0, 200);
  if (typeof raw.status === "number" && raw.status > 0) out.status = raw.status;
  if (typeof raw.region === "string" && raw.region !== "") out.region = raw.region;
  return out;
}

export const sameFilter = (a: AppsSearch, b: AppsSearch) => (a.q ?? "") === (b.q ?? "") && (a.status ?? 0) === (b.status ?? 0) && (a.region ?? "") === (b.region ?? "");

export function readViews(storage: Storage, workspace: string): View[] {
  try {
    const kept: unknown = JSON.parse(storage.getItem(keyOf(workspace)) ?? "[]");
    if (!Array.isArray(kept)) return [];
    return kept
      .filter((v: unknown): v is { name: string; search: Record<string, unknown> } => {
        const view = v as Partial<View> | null;
        return typeof view?.name === "string" && typeof view.search === "object" && view.search !== null;
      })
      .map((v) => ({ name: v.name.slice(0, maxName), search: filterOf(v.search) }))
      .slice(0, maxViews);
  } catch {
    return [];
  }
}

/** Adds the view, in the place of one of that name. */
export const withView = (views: View[], view: View): View[] => [...views.filter((v) => v.name !== view.name), view].sort((a, b) => a.name.localeCompare(b.name)).slice(0, maxViews);

/** Keeps the views; false: the browser keeps nothing for this page. */
export function keepViews(storage: Storage, workspace: string, views: View[]): boolean {
  try {
    if (views.length === 0) storage.removeItem(keyOf(workspace));
    else storage.setItem(keyOf(workspace), JSON.stringify(views));
    return true;
  } catch {
    return false;
  }
}
