/** What a connection subscribes to, as its page lists it. */

import type { Connection } from "./api";

export interface Listed {
  /** A topic or a filter. */
  name: string;
  /** A topic has a page. */
  isTopic: boolean;
  kind: string;
  /** Null for other protocols than MQTT. */
  qos: number | null;
}

/** All subscriptions of a connection. MQTT names those of a group too, which are among neither `topics` nor `filters`. */
export function subscriptionsOf({ topics, filters, mqtt }: Pick<Connection, "topics" | "filters" | "mqtt">): Listed[] {
  if (mqtt !== null) {
    return mqtt.subscriptions.map(({ filter, qos, share }) => {
      const isTopic = share === null && !isWild(filter);
      return { name: filter, isTopic, kind: share === null ? kindOf(isTopic) : `shared in the group ${share}`, qos };
    });
  }
  const listed = (isTopic: boolean) => (name: string) => ({ name, isTopic, kind: kindOf(isTopic), qos: null });
  return [...topics.map(listed(true)), ...filters.map(listed(false))];
}

const kindOf = (isTopic: boolean) => (isTopic ? "topic" : "filter");

/** Whether a filter has a wildcard, which is a level of its own. */
const isWild = (filter: string) => filter.split("/").some((level) => level === "+" || level === "#");
