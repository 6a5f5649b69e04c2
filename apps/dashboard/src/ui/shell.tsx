import { Link, Outlet, useLocation } from "@tanstack/react-router";
import { DropdownMenu } from "radix-ui";
import { useEffect } from "react";
import { useFleet } from "../api/fleet.js";
import type { Link as Stream } from "../api/follow.js";
import icon from "../icon.svg";
import { administers, roleName } from "../model/words.js";
import { duration } from "../model/time.js";
import { useNow } from "./pieces.js";
import { useSession } from "./session.js";
import { Tabs } from "./tabs.js";
import { setTheme, useTheme, type Theme } from "./theme.js";
import { useToast } from "./toast.js";
import { workspacePages } from "./workspace-tabs.js";

const linkWords: Record<Stream["state"], { text: string; tone: string }> = {
  connecting: { text: "connecting", tone: "busy" },
  live: { text: "live", tone: "good" },
  stale: { text: "stale", tone: "warn" },
  refused: { text: "not connected", tone: "bad" },
};

function Stale({ link }: { link: Stream }) {
  const now = useNow();
  if (link.state === "refused")
    return (
      <div className="banner" role="alert">
        <div>The control plane refuses to send news: {link.why}</div>
      </div>
    );
  if (link.state !== "stale") return null;
  return (
    <div className="banner" role="alert">
      <div>
        This page is stale. {link.why || "The control plane does not answer."} There has been no news for{" "}
        <span aria-hidden="true">{duration(Math.max(1000, now - link.since))}</span>
        <span className="visually-hidden">some time</span>. What you see is as of then. Instances keep running. The page connects again by itself.
      </div>
    </div>
  );
}

const themes: Record<Theme, string> = { system: "as the system", light: "light", dark: "dark" };
const nextTheme: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

function Account() {
  const { me, leave } = useSession();
  const theme = useTheme();
  const say = useToast();
  const key = me.key;
  const out = (everywhere: boolean) => void leave(everywhere).catch(() => say("The control plane did not answer: you are still signed in."));
  return (
    <DropdownMenu.Root modal={false}>
      <DropdownMenu.Trigger className="button small" aria-label={`Account: ${key?.name ?? ""}`}>
        {key?.name} <span aria-hidden="true">▾</span>
      </DropdownMenu.Trigger>
        {/* Not in a portal, which would be outside of all landmarks. */}
        <DropdownMenu.Content className="menu" align="end" sideOffset={6}>
          <div className="menu-label small">
            <div>
              {me.member ? "Member" : "Key"} <b>{key?.name}</b>, {roleName(key?.role ?? 0)}
            </div>
            <div className="dim">{me.workspaceName ? `workspace ${me.workspaceName}` : "the platform"}</div>
            <div className="dim">control plane {me.serverVersion}</div>
          </div>
          <DropdownMenu.Item
            className="menu-item"
            onSelect={(e) => {
              e.preventDefault();
              setTheme(nextTheme[theme]);
            }}
          >
            Colours <span className="dim">{themes[theme]}</span>
          </DropdownMenu.Item>
          <DropdownMenu.Item className="menu-item" onSelect={() => out(false)}>
            Sign out
          </DropdownMenu.Item>
          <DropdownMenu.Item className="menu-item" onSelect={() => out(true)}>
            Sign out everywhere
          </DropdownMenu.Item>
        </DropdownMenu.Content>
    </DropdownMenu.Root>
  );
}

export function Shell() {
  const { link } = useFleet();
  const { lost, me } = useSession();
  const inWorkspace = useLocation({ select: (l) => workspacePages.some((p) => l.pathname.startsWith(p)) });
  const signedOut = link.state === "refused" && link.signedOut;
  useEffect(() => {
    if (signedOut) lost();
  }, [signedOut, lost]);
  const word = linkWords[link.state];
  return (
    <>
      <a className="skip" href="#main">
        Skip to the content
      </a>
      <header className="top">
        <div className="top-in">
          <Link to="/fleet" className="brand" aria-label="Windlass">
            <img src={icon} alt="" />
            <span>Windlass</span>
          </Link>
          <Tabs className="nav" label="Pages">
            <Link to="/fleet">Fleet</Link>
            {me.workspaceName ? (
              <>
                <Link to="/apps">Apps</Link>
                <Link to="/plan">Plan</Link>
                <Link to="/presets">Presets</Link>
                <Link to="/quota" className={inWorkspace ? "active" : ""} aria-current={inWorkspace ? "page" : undefined}>
                  Workspace
                </Link>
              </>
            ) : (
              <>
                <Link to="/workspaces">Workspaces</Link>
                <Link to="/members">Members</Link>
                <Link to="/keys">Keys</Link>
                {administers(me.key?.role) ? <Link to="/audit">Audit</Link> : null}
              </>
            )}
          </Tabs>
          <div className="top-end">
            <span className="link-state" role="status" aria-label={`Data: ${word.text}`}>
              <i className={`dot ${word.tone}`} aria-hidden="true" />
              <span className="text">{word.text}</span>
            </span>
            <Account />
          </div>
        </div>
      </header>
      <Stale link={link} />
      <main id="main" tabIndex={-1}>
        <Outlet />
      </main>
    </>
  );
}
