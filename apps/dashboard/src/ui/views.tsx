import { Link } from "@tanstack/react-router";
import { useState, type ReactNode } from "react";
import { filterOf, keepViews, maxName, readViews, sameFilter, withView, type View } from "../model/views.js";
import type { AppsSearch } from "../router.js";
import { Confirm } from "./confirm.js";
import { useSession } from "./session.js";
import { useToast } from "./toast.js";

/**
 * Filters of the list of apps that have a name, and a button that gives the filter in force one or removes it. They are
 * apart, so that nothing moves when a filter begins.
 */
export function useViews(search: AppsSearch, filtered: boolean): { list: ReactNode; button: ReactNode } {
  const { me } = useSession();
  const say = useToast();
  const [views, setViews] = useState(() => readViews(localStorage, me.workspaceName));
  const [asking, setAsking] = useState(false);
  const [name, setName] = useState("");
  const keep = (next: View[]) => {
    setViews(next);
    if (!keepViews(localStorage, me.workspaceName, next)) say("This browser keeps nothing for this page: the view is gone with it.");
  };
  const shown = views.find((v) => sameFilter(v.search, search));
  const list =
    views.length > 0 ? (
      <ul className="toggles views" aria-label="Saved views">
        {views.map((v) => (
          <li key={v.name}>
            <Link to="/apps" search={v.search} replace className="toggle view" activeOptions={{ exact: true, includeSearch: true }}>
              {v.name}
            </Link>
          </li>
        ))}
      </ul>
    ) : null;
  const button = (
    <>
      {shown ? (
        <button
          type="button"
          className="button small"
          onClick={() => {
            keep(views.filter((v) => v !== shown));
            say(`View ${shown.name} is removed.`);
          }}
        >
          Remove view {shown.name}
        </button>
      ) : filtered ? (
        <button type="button" className="button small" onClick={() => setAsking(true)}>
          Save this view
        </button>
      ) : null}
      {asking ? (
        <Confirm
          ask={{ title: "Save this view", effect: "This browser keeps the filter under a name, above the list of apps. Others get it by its address.", label: "Save the view", grave: false, reason: "" }}
          act={async () => {
            keep(withView(views, { name: name.trim(), search: filterOf(search) }));
            setName("");
          }}
          onClose={() => setAsking(false)}
          explain={String}
        >
          <div className="field">
            <label htmlFor="view-name">Name</label>
            <input id="view-name" className="input" required pattern=".*\S.*" maxLength={maxName} autoComplete="off" value={name} onChange={(e) => setName(e.target.value)} />
          </div>
        </Confirm>
      ) : null}
    </>
  );
  return { list, button };
}
