import { useState } from "react";
import { apps, explain, mutation, rollouts } from "../api/clients.js";
import type { App } from "../gen/windlass/v1/app_pb.js";
import type { Rollout } from "../gen/windlass/v1/rollout_pb.js";
import { appPath } from "../model/fleet.js";
import { actions, type Action, type ActionName } from "../model/rollout.js";
import { steers } from "../model/words.js";
import { Confirm } from "../ui/confirm.js";
import { useSession } from "../ui/session.js";
import { useToast } from "../ui/toast.js";

const both = (effect: string, otherwise: string) => effect || otherwise;

/** What a dialog was opened for: the call is refused if another rollout is in flight by then. */
type Asked = { action: Action; rolloutId: string; liveVersion: number };

/** Does it, and returns what came of it, for people. */
async function act({ action, rolloutId, liveVersion }: Asked, app: App, why: string): Promise<string> {
  const req = { mutation: mutation(), app: app.id, rolloutId, why };
  switch (action.name) {
    case "pause":
      return both((await rollouts.pauseRollout(req)).effect, "The rollout is paused.");
    case "resume":
      return both((await rollouts.resumeRollout(req)).effect, "The rollout goes on.");
    case "promote":
      return both((await rollouts.promote(req)).effect, "The new version is promoted.");
    case "promote-full":
      return both((await rollouts.promote({ ...req, full: true })).effect, "The new version is promoted in full.");
    case "skip-bake":
      return both((await rollouts.skipBake(req)).effect, "The bake is over.");
    case "retry":
      return both((await rollouts.retryRollout(req)).effect, "The regions that failed begin again.");
    case "approve": {
      const { missing } = await rollouts.approve({ mutation: req.mutation, app: app.id, rolloutId, comment: why });
      return missing.length > 0 ? `Approved. Still missing: ${missing.join("; ")}` : "Approved: the gate is open.";
    }
    case "abort":
      return (await apps.cancel(req)).unchanged ? "It was aborted already." : "The rollout is aborted.";
    case "rollback": {
      const res = await apps.rollback({ mutation: req.mutation, app: app.id, liveVersion, message: why });
      return res.warnings.join(" ") || `The app goes back to v${res.fromVersion || res.version}.`;
    }
  }
}

const question: Record<ActionName, string> = {
  pause: "Pause the rollout",
  resume: "Resume the rollout",
  promote: "Promote the new version",
  "promote-full": "Promote in full",
  approve: "Approve",
  "skip-bake": "Skip the bake",
  retry: "Try the failed regions again",
  abort: "Abort the rollout",
  rollback: "Roll back",
};

/** Buttons for what a person can do about the app's rollout now. */
export function Steer({ app, rollout }: { app: App; rollout: Rollout | undefined }) {
  const { me } = useSession();
  const say = useToast();
  const [asked, setAsked] = useState<Asked | null>(null);
  const possible = actions(rollout, app);
  if (!steers(me.key?.role)) return possible.length > 0 ? <p className="dim small">Your key reads only.</p> : null;
  return (
    <>
      {possible.length > 0 ? (
        <div className="buttons">
          {possible.map((a, i) => (
            <button key={a.name} type="button" className={`button${i === 0 && !a.grave ? " primary" : ""}${a.grave ? " grave" : ""}`} onClick={() => setAsked({ action: a, rolloutId: rollout?.id ?? "", liveVersion: app.liveVersion })}>
              {a.label}
            </button>
          ))}
        </div>
      ) : null}
      {asked ? (
        <Confirm
          ask={{
            title: `${question[asked.action.name]}: ${appPath(app)}`,
            effect: asked.action.effect,
            label: asked.action.label,
            grave: asked.action.grave,
            reason: asked.action.name === "approve" ? "Comment (optional)" : "Why, for the history (optional)",
          }}
          act={async (why) => say(await act(asked, app, why))}
          onClose={() => setAsked(null)}
          explain={explain}
        />
      ) : null}
    </>
  );
}
