import { createClient } from "@connectrpc/connect";
import { useId, useState } from "react";
import { explain, mutation, transport } from "../api/clients.js";
import { Role } from "../gen/windlass/v1/common_pb.js";
import { RegionService, type Region } from "../gen/windlass/v1/region_pb.js";
import { changedMeanwhile } from "../model/changed.js";
import { labelsText, parseLabels } from "../model/labels.js";
import { administers } from "../model/words.js";
import { Confirm } from "../ui/confirm.js";
import type { Made } from "../ui/once.js";
import { NameField } from "../ui/name-field.js";
import { useToast } from "../ui/toast.js";

const regions = createClient(RegionService, transport);

export type RegionAsked = { what: "create" } | { what: "token" | "labels" | "revoke" | "evict"; region: Region };

/** Whether keys of the role manage the region: owners those of their workspace, operators the platform's. */
export const manages = (role: Role | undefined, region: Region) => administers(role) && (role === Role.OPERATOR) === (region.workspaceId === "");

const lifetimes: [number, string][] = [
  [3600, "an hour"],
  [86_400, "a day"],
  [604_800, "a week"],
];

const tokenOf = async (region: string, ttlSeconds: number): Promise<Made> => ({
  what: `A join token of ${region}`,
  value: (await regions.createJoinToken({ mutation: mutation(), region, ttlSeconds })).token,
});

function AskCreate({ platform, done, close }: { platform: boolean; done: (made: Made) => void; close: () => void }) {
  const [name, setName] = useState("");
  const [created, setCreated] = useState(false);
  return (
    <Confirm
      ask={{
        title: "Create a region",
        effect: `Makes ${platform ? "a region of the platform, which workspaces use by grant," : "a region of the workspace"} and a token with which one agent joins it, once and within an hour.`,
        label: "Create the region",
        grave: false,
        reason: "",
      }}
      act={async () => {
        // A second try after the token failed does not make the region again.
        if (!created) await regions.createRegion({ mutation: mutation(), name, platform });
        setCreated(true);
        done(await tokenOf(name, 3600));
      }}
      onClose={close}
      explain={explain}
    >
      <NameField value={name} onChange={setName} placeholder="eu-west-1" disabled={created} />
    </Confirm>
  );
}

function AskToken({ region, done, close }: { region: Region; done: (made: Made) => void; close: () => void }) {
  const id = useId();
  const [ttl, setTtl] = useState(3600);
  return (
    <Confirm
      ask={{ title: `Make a join token of ${region.name}`, effect: "One agent joins the region with it, once. Its value is shown once, here.", label: "Make the token", grave: false, reason: "" }}
      act={async () => done(await tokenOf(region.name, ttl))}
      onClose={close}
      explain={explain}
    >
      <div className="field">
        <label htmlFor={`${id}t`}>Good for</label>
        <select id={`${id}t`} className="select" value={ttl} onChange={(e) => setTtl(Number(e.target.value))}>
          {lifetimes.map(([n, text]) => (
            <option key={n} value={n}>
              {text}
            </option>
          ))}
        </select>
      </div>
    </Confirm>
  );
}

function AskLabels({ region, close }: { region: Region; close: () => void }) {
  const say = useToast();
  const id = useId();
  const [opened] = useState(region);
  const [text, setText] = useState(() => labelsText(region.labels));
  return (
    <Confirm
      ask={{
        title: `Labels of ${region.name}`,
        effect: "Overrides of apps select regions by labels, from the next version of an app on. The labels latitude and longitude, in degrees, say where the map shows the region.",
        label: "Set the labels",
        grave: false,
        reason: "",
      }}
      act={async () => {
        const { unchanged } = await regions.updateRegion({ mutation: mutation(), region: opened.id, labels: parseLabels(text), resourceVersion: opened.resourceVersion });
        say(unchanged ? "The labels are so already." : `The labels of ${region.name} are set.`);
      }}
      onClose={close}
      explain={explain}
    >
      <div className="field">
        <label htmlFor={id}>Labels, one NAME=VALUE in each line</label>
        <textarea id={id} className="input file" rows={6} spellCheck={false} value={text} onChange={(e) => setText(e.target.value)} placeholder={"latitude=52.4\nlongitude=4.9"} />
      </div>
      {region.resourceVersion !== opened.resourceVersion ? <p className="note warn">{changedMeanwhile}</p> : null}
    </Confirm>
  );
}

function AskRevoke({ region, close }: { region: Region; close: () => void }) {
  const say = useToast();
  return (
    <Confirm
      ask={{
        title: `Revoke the credentials of ${region.name}`,
        effect: `Ends every credential of the region's agents, and their streams. What runs there keeps running, and nothing changes there until an agent joins with a new token.`,
        label: "Revoke the credentials",
        grave: true,
        reason: "",
      }}
      act={async () => {
        const { revoked } = await regions.revokeCredentials({ mutation: mutation(), region: region.name });
        say(`${revoked} credential${revoked === 1 ? " is" : "s are"} revoked.`);
      }}
      onClose={close}
      explain={explain}
    />
  );
}

function AskEvict({ region, close }: { region: Region; close: () => void }) {
  const say = useToast();
  const id = useId();
  const [workspace, setWorkspace] = useState("");
  const [sure, setSure] = useState("");
  return (
    <Confirm
      ask={{
        title: `Evict a workspace from ${region.name}`,
        effect: "Revokes the workspace's grant of the region, and scales all that it runs there to nothing. Its apps serve from other regions only, or not at all.",
        label: "Evict the workspace",
        grave: true,
        reason: "Why, for the history (optional)",
      }}
      act={async (why) => {
        if (sure !== region.name) throw new Error(`type ${region.name} to evict from it`);
        let apps = 0;
        for (let more = true; more; ) {
          const res = await regions.evictWorkspace({ mutation: mutation(), region: region.name, workspace, why: why.slice(0, 512) });
          apps += res.apps;
          more = res.more;
        }
        say(`${apps} app${apps === 1 ? "" : "s"} of ${workspace} ${apps === 1 ? "is" : "are"} scaled to nothing in ${region.name}.`);
      }}
      onClose={close}
      explain={explain}
    >
      <div className="pair">
        <div className="field">
          <label htmlFor={`${id}w`}>Workspace</label>
          <input id={`${id}w`} className="input" required maxLength={256} autoComplete="off" spellCheck={false} value={workspace} onChange={(e) => setWorkspace(e.target.value)} />
        </div>
        <div className="field">
          <label htmlFor={`${id}s`}>Type {region.name} to confirm</label>
          <input id={`${id}s`} className="input" required autoComplete="off" spellCheck={false} value={sure} onChange={(e) => setSure(e.target.value)} />
        </div>
      </div>
    </Confirm>
  );
}

/** Buttons for what can be done about a region. */
export function RegionButtons({ region, role, ask }: { region: Region; role: Role | undefined; ask: (asked: RegionAsked) => void }) {
  if (!manages(role, region)) return null;
  const button = (what: "token" | "labels" | "revoke" | "evict", label: string, name: string, grave: boolean) => (
    <button type="button" className={`button small${grave ? " grave" : ""}`} aria-label={name} onClick={() => ask({ what, region })}>
      {label}
    </button>
  );
  return (
    <div className="buttons">
      {button("token", "Join token", `Make a join token of ${region.name}`, false)}
      {button("labels", "Labels", `Set the labels of ${region.name}`, false)}
      {region.agentVersion ? button("revoke", "Revoke credentials", `Revoke the credentials of ${region.name}`, true) : null}
      {role === Role.OPERATOR ? button("evict", "Evict a workspace", `Evict a workspace from ${region.name}`, true) : null}
    </div>
  );
}

export function RegionDialog({ asked, platform, done, close }: { asked: RegionAsked; platform: boolean; done: (made: Made) => void; close: () => void }) {
  switch (asked.what) {
    case "create":
      return <AskCreate platform={platform} done={done} close={close} />;
    case "token":
      return <AskToken region={asked.region} done={done} close={close} />;
    case "labels":
      return <AskLabels region={asked.region} close={close} />;
    case "revoke":
      return <AskRevoke region={asked.region} close={close} />;
    case "evict":
      return <AskEvict region={asked.region} close={close} />;
  }
}
