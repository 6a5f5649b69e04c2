// A stream that is opened again when it breaks, and says when what was received is no longer known
// to be current.
import { Code, ConnectError } from "@connectrpc/connect";

export type Link =
  | { state: "connecting" }
  | { state: "live" }
  /** Nothing came after `since`; the stream is opened again. `why` is what the server answered; empty: nothing. */
  | { state: "stale"; since: number; why: string }
  /** The server refuses it for good. */
  | { state: "refused"; why: string; signedOut: boolean };

export type Follow<T> = {
  open: (signal: AbortSignal) => AsyncIterable<T>;
  onMessage: (message: T) => void;
  onLink: (link: Link) => void;
  /** Without a message for so long the stream counts as broken; 0: it may be silent. */
  silenceMs: number;
  /** When the last message of an earlier stream of the same came. Default: none did. */
  heard?: number;
  /** Asked when the server ended the stream without an error. True: nothing more will come, and it is not opened again. */
  isOver?: () => boolean;
  explain: (error: unknown) => string;
};

const leastWaitMs = 250;
const maxWaitMs = 10_000;

/** How long to wait after that number of failures in a row: full jitter, as in pkg/backoff. */
export function backoff(failures: number): number {
  const most = Math.min(maxWaitMs, leastWaitMs * 2 ** failures);
  return leastWaitMs + Math.random() * (most - leastWaitMs);
}

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
    let since = f.heard ?? 0;
    let live = false;
    while (!stopped) {
      const abort = new AbortController();
      current = abort;
      let silence: ReturnType<typeof setTimeout> | undefined;
      const listen = () => {
        clearTimeout(silence);
        if (f.silenceMs > 0) silence = setTimeout(() => abort.abort(), f.silenceMs);
      };
      let why = "";
      try {
        listen();
        for await (const message of f.open(abort.signal)) {
          if (stopped) return;
          listen();
          if (!live) f.onLink({ state: "live" });
          live = true;
          tries = 0;
          since = Date.now();
          f.onMessage(message);
        }
        if (f.isOver?.()) return;
      } catch (error) {
        if (stopped) return;
        if (error instanceof ConnectError && lasting.has(error.code)) {
          f.onLink({ state: "refused", why: f.explain(error), signedOut: error.code === Code.Unauthenticated });
          return;
        }
        // An error without details is the browser's or a proxy's, about the connection.
        if (error instanceof ConnectError && error.details.length > 0) why = f.explain(error);
      } finally {
        clearTimeout(silence);
        abort.abort();
      }
      if (stopped) return;
      live = false;
      tries++;
      since ||= Date.now();
      f.onLink({ state: "stale", since, why });
      await wait(backoff(tries));
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
