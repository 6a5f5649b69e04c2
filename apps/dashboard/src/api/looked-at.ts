/** A page that is not looked at gives its connections back: a browser has six of a host without TLS. */
const hiddenMs = 20_000;

/**
 * Runs start now and whenever the page is looked at again, and what start returned once the page is hidden for some
 * time. onPause is called then, too. Call what is returned to end it.
 */
export function whileLookedAt(start: () => () => void, onPause?: () => void): () => void {
  let stop: (() => void) | undefined = start();
  let hide: ReturnType<typeof setTimeout> | undefined;
  const onVisibility = () => {
    clearTimeout(hide);
    if (!document.hidden) stop ??= start();
    else
      hide = setTimeout(() => {
        stop?.();
        stop = undefined;
        onPause?.();
      }, hiddenMs);
  };
  document.addEventListener("visibilitychange", onVisibility);
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    clearTimeout(hide);
    stop?.();
  };
}
