import { useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, useCallback, useContext, useEffect, useState, type ReactNode } from "react";
import { access, explain, isSignedOut } from "../api/clients.js";
import { backoff } from "../api/follow.js";
import { renew, SessionError, signInWithLink, signOut, takeLink } from "../api/session.js";
import type { WhoAmIResponse } from "../gen/windlass/v1/access_pb.js";
import { SignIn } from "../pages/sign-in.js";
import { Loading } from "./pieces.js";

export type Session = { me: WhoAmIResponse; leave: (everywhere: boolean) => Promise<void>; lost: () => void };
const Context = createContext<Session | null>(null);

/** Shows its children as somebody who is signed in already. */
export function As({ session, children }: { session: Session; children: ReactNode }) {
  return <Context.Provider value={session}>{children}</Context.Provider>;
}

export function useSession(): Session {
  const s = useContext(Context);
  if (!s) throw new Error("useSession is for pages that are shown to who is signed in");
  return s;
}

// Read before the router looks at the address, and used once, also where effects run twice.
const link = takeLink(window.location, window.history);
let linkUsed: Promise<void> | null = null;

/** Shows its children to who is signed in, at whatever address, and others the sign-in. */
export function SignedIn({ children }: { children: ReactNode }) {
  const queries = useQueryClient();
  const [failed, setFailed] = useState("");
  const me = useQuery({
    queryKey: ["me"],
    queryFn: async () => {
      if (link && !linkUsed) linkUsed = signInWithLink(link).catch((e: unknown) => setFailed(explain(e)));
      if (linkUsed) await linkUsed;
      try {
        return await access.whoAmI({});
      } catch (error) {
        if (isSignedOut(error)) return null;
        throw error;
      }
    },
    retry: (count, error) => !isSignedOut(error) && count < 1000,
    retryDelay: (n) => backoff(n + 1),
    staleTime: Infinity,
    refetchOnReconnect: false,
  });
  const lost = useCallback(() => {
    queries.removeQueries({ predicate: (q) => q.queryKey[0] !== "me" });
    queries.setQueryData(["me"], null);
  }, [queries]);
  const entered = useCallback(() => {
    setFailed("");
    void queries.invalidateQueries({ queryKey: ["me"] });
  }, [queries]);
  const leave = useCallback(
    async (everywhere: boolean) => {
      await signOut(everywhere);
      lost();
    },
    [lost],
  );
  const inside = me.data !== undefined && me.data !== null;
  useEffect(() => {
    if (!inside) return;
    let timer: ReturnType<typeof setTimeout>;
    const again = (ms: number) => (timer = setTimeout(() => void keep(), ms));
    async function keep() {
      try {
        again((await renew()).renewAfterMs);
      } catch (error) {
        if (error instanceof SessionError && error.status === 401) lost();
        else again(60_000);
      }
    }
    void keep();
    return () => clearTimeout(timer);
  }, [inside, lost]);

  if (me.data) return <As session={{ me: me.data, leave, lost }}>{children}</As>;
  if (me.data === null) return <SignIn entered={entered} why={failed} />;
  return (
    <main>
      <h1 className="visually-hidden">Windlass</h1>
      {me.failureReason ? (
        <p className="note warn" role="status">
          {explain(me.failureReason)} The page tries again by itself.
        </p>
      ) : (
        <Loading what="who you are" />
      )}
    </main>
  );
}
