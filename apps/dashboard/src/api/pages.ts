// Lists that the API gives in keyset pages, the first pages of which are shown.
import { useInfiniteQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";

export type PageOf<T> = { items: T[]; next: string };

export type Pages<T> = {
  items: T[];
  /** Nothing was received yet. */
  pending: boolean;
  error: unknown;
  more: boolean;
  loadingMore: boolean;
  loadMore: () => void;
  refetch: () => void;
};

type Options = { enabled?: boolean; refetchInterval?: number };

/** Reads the first page of a list, and each further one when it is asked for. */
export function usePages<T>(key: readonly unknown[], read: (token: string, signal: AbortSignal) => Promise<PageOf<T>>, options: Options = {}): Pages<T> {
  const list = useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => read(pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last: PageOf<T>) => last.next || undefined,
    ...options,
  });
  return {
    items: list.data?.pages.flatMap((p) => p.items) ?? [],
    pending: list.isPending,
    error: list.error,
    more: list.hasNextPage,
    loadingMore: list.isFetchingNextPage,
    loadMore: () => void list.fetchNextPage(),
    refetch: () => void list.refetch({ cancelRefetch: false }),
  };
}

/** Least time between two reads, however often a stream brings news. */
const leastMs = 1000;

/** Calls refetch when the stream brings news, but not for what the first read has. */
export function useRefetchOnNews(revision: number, refetch: () => void) {
  const current = useRef(refetch);
  current.current = refetch;
  const seen = useRef(0);
  const last = useRef(0);
  useEffect(() => {
    if (revision === 0 || revision === seen.current) return;
    const first = seen.current === 0;
    seen.current = revision;
    if (first) return;
    const timer = setTimeout(
      () => {
        last.current = Date.now();
        current.current();
      },
      Math.max(0, last.current + leastMs - Date.now()),
    );
    return () => clearTimeout(timer);
  }, [revision]);
}
