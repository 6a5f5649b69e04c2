// Reads again what has no stream of its own, when a stream brings news that may be about it.
import { useEffect, useRef } from "react";
import { useFleet } from "./fleet.js";

/**
 * Calls refetch when revision changes, but not for what the first read has. Between two calls at least leastMs pass,
 * however often a stream brings news.
 */
export function useRefetchOnNews(revision: number, refetch: () => void, leastMs = 1000) {
  const current = useRef(refetch);
  current.current = refetch;
  const seen = useRef(0);
  const last = useRef(0);
  useEffect(() => {
    if (revision === 0 || revision === seen.current) return;
    const first = seen.current === 0;
    if (first) {
      seen.current = revision;
      last.current = Date.now();
      return;
    }
    const timer = setTimeout(
      () => {
        seen.current = revision;
        last.current = Date.now();
        current.current();
      },
      Math.max(0, last.current + leastMs - Date.now()),
    );
    return () => clearTimeout(timer);
  }, [revision, leastMs]);
}

/** As useRefetchOnNews, of anything in the workspace. Agents that report are news, so that it is called while a region is connected. */
export function useRefetchOnFleetNews(refetch: () => void, leastMs = 10_000) {
  useRefetchOnNews(useFleet().news, refetch, leastMs);
}
