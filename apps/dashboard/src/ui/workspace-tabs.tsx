import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { administers } from "../model/words.js";
import { useSession } from "./session.js";
import { Tabs } from "./tabs.js";

/** Pages about the workspace, by their paths. */
export const workspacePages = ["/quota", "/features", "/freezes", "/notifications", "/members", "/keys", "/audit"] as const;

/** The head of a page about the workspace of the key. Operators, who have none, see the head without the tabs. */
export function WorkspaceHead({ title, end }: { title: string; end?: ReactNode }) {
  const { me } = useSession();
  return (
    <>
      <div className="page-head">
        <h1 className="grow">
          {title} {me.workspaceName ? <span className="visually-hidden">of workspace {me.workspaceName}</span> : null}
        </h1>
        {end}
      </div>
      {me.workspaceName ? (
        <Tabs label={`Pages of workspace ${me.workspaceName}`}>
          <Link to="/quota">Quota</Link>
          <Link to="/features">Features</Link>
          <Link to="/freezes">Freezes</Link>
          <Link to="/notifications">Notifications</Link>
          <Link to="/members">Members</Link>
          <Link to="/keys">Keys</Link>
          {administers(me.key?.role) ? <Link to="/audit">Audit</Link> : null}
        </Tabs>
      ) : null}
    </>
  );
}
