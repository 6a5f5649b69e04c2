// Light or dark: as the system says, until a person says otherwise.
import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";
const key = "windlass-theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

const read = (): Theme => {
  const kept = localStorage.getItem(key);
  return kept === "light" || kept === "dark" ? kept : "system";
};

export function applyTheme() {
  const theme = read();
  document.documentElement.dataset.theme = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
}

dark.addEventListener("change", applyTheme);

export function setTheme(theme: Theme) {
  if (theme === "system") localStorage.removeItem(key);
  else localStorage.setItem(key, theme);
  applyTheme();
  for (const l of listeners) l();
}

export const useTheme = (): Theme =>
  useSyncExternalStore((l) => {
    listeners.add(l);
    return () => listeners.delete(l);
  }, read);
