// Lists that the API gives in keyset pages, the first pages of which are shown.
import { useInfiniteQuery } from "@tanstack/react-query";
import { useRefetchOnFleetNews } from "./news.js";

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

/** Reads the first page of a list, and each further one when it is asked for. What was read is read again when the fleet's stream brings news. */
export function usePages<T>(key: readonly unknown[], read: (token: string, signal: AbortSignal) => Promise<PageOf<T>>): Pages<T> {
  const list = useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => read(pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last: PageOf<T>) => last.next || undefined,
  });
  const refetch = () => void list.refetch({ cancelRefetch: false });
  useRefetchOnFleetNews(refetch);
  return {
    items: list.data?.pages.flatMap((p) => p.items) ?? [],
    pending: list.isPending,
    error: list.error,
    more: list.hasNextPage,
    loadingMore: list.isFetchingNextPage,
    loadMore: () => void list.fetchNextPage(),
    refetch,
  };
}
