/** Which view the part of the address behind `#` names, and the addresses of views. */

import { useEffect, useState } from "preact/hooks";

export type View = "overview" | "topics" | "topic" | "connections" | "connection" | "session" | "slow" | "limits" | "settings" | "unknown";

export interface Route {
  view: View;
  /** A filter, the name of a topic, a connection's id, or the client id and the user of a session. */
  of: string;
}

const VIEWS: readonly View[] = ["topics", "topic", "connections", "connection", "session", "slow", "limits", "settings"];

export function to(view: View, of = ""): string {
  return of === "" ? `#/${view}` : `#/${view}/${encodeURIComponent(of)}`;
}

export function parse(hash: string): Route {
  const [, name = "", ...rest] = hash.split("/");
  const view = name === "" ? "overview" : (VIEWS.find((known) => known === name) ?? "unknown");
  try {
    return { view, of: decodeURIComponent(rest.join("/")) };
  } catch {
    return { view, of: "" };
  }
}

export function useRoute(): Route {
  const [route, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const change = () => set(parse(location.hash));
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return route;
}
