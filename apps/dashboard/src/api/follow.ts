// A stream that is opened again when it breaks, and says when what was received is no longer known
// to be current.
import { Code, ConnectError } from "@connectrpc/connect";

export type Link =
  | { state: "connecting" }
  | { state: "live" }
  /** The stream broke at `since`; it is opened again. */
  | { state: "stale"; since: number; why: string }
  /** The server refuses it for good. */
  | { state: "refused"; why: string; signedOut: boolean };

export type Follow<T> = {
  open: (signal: AbortSignal) => AsyncIterable<T>;
  onMessage: (message: T) => void;
  onLink: (link: Link) => void;
  /** Without a message for so long the stream counts as broken; 0: it may be silent. */
  silenceMs: number;
  explain: (error: unknown) => string;
};

const firstWaitMs = 500;
const maxWaitMs = 10_000;

const lasting = new Set([Code.Unauthenticated, Code.PermissionDenied, Code.NotFound, Code.InvalidArgument, Code.Unimplemented]);

/** Follows until the returned function is called. */
export function follow<T>(f: Follow<T>): () => void {
  let stopped = false;
  let current: AbortController | undefined;
  let wake: (() => void) | undefined;

  const wait = (ms: number) =>
    new Promise<void>((resolve) => {
      const timer = setTimeout(done, ms);
      function done() {
        clearTimeout(timer);
        wake = undefined;
        resolve();
      }
      wake = done;
    });

  async function run() {
    let tries = 0;
    let since = 0;
    while (!stopped) {
      const abort = new AbortController();
      current = abort;
      let silence: ReturnType<typeof setTimeout> | undefined;
      const listen = () => {
        clearTimeout(silence);
        if (f.silenceMs > 0) silence = setTimeout(() => abort.abort(), f.silenceMs);
      };
      let why = "the control plane ended the stream";
      try {
        listen();
        for await (const message of f.open(abort.signal)) {
          if (stopped) return;
          listen();
          if (tries > 0 || since === 0) f.onLink({ state: "live" });
          tries = 0;
          since = Date.now();
          f.onMessage(message);
        }
      } catch (error) {
        if (stopped) return;
        if (error instanceof ConnectError && lasting.has(error.code)) {
          f.onLink({ state: "refused", why: f.explain(error), signedOut: error.code === Code.Unauthenticated });
          return;
        }
        why = abort.signal.aborted ? "the control plane is silent" : f.explain(error);
      } finally {
        clearTimeout(silence);
        abort.abort();
      }
      if (stopped) return;
      tries++;
      f.onLink({ state: "stale", since: since || Date.now(), why });
      const most = Math.min(maxWaitMs, firstWaitMs * 2 ** (tries - 1));
      await wait(most / 2 + Math.random() * (most / 2));
    }
  }
  const retryNow = () => wake?.();
  window.addEventListener("online", retryNow);
  void run();
  return () => {
    stopped = true;
    window.removeEventListener("online", retryNow);
    current?.abort();
    wake?.();
  };
}
