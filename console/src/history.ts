/** What the charts show: the last minutes as columns, from the server's samples and from each report after them. */

import type { Recent, Stats } from "./api";

/** A quarter of an hour at one a second, as much as the server keeps. */
const HISTORY_MAX = 900;

/** Which columns are kept. Each is a number of one report, or null where there is none. */
export const COLUMNS = {
  time: (s: Stats) => s.time_ms / 1000,
  websocket: (s: Stats) => s.connections.by_transport["websocket"] ?? 0,
  sse: (s: Stats) => s.connections.by_transport["sse"] ?? 0,
  longpoll: (s: Stats) => s.connections.by_transport["longpoll"] ?? 0,
  mqtt: (s: Stats) =>
    (s.connections.by_transport["mqtt"] ?? 0) + (s.connections.by_transport["mqtt_websocket"] ?? 0),
  centrifugo: (s: Stats) => s.connections.by_transport["centrifugo"] ?? 0,
  in: (s: Stats) => s.messages.in_per_s,
  out: (s: Stats) => s.messages.out_per_s,
  p50: (s: Stats) => s.latency_us.p50,
  p99: (s: Stats) => s.latency_us.p99,
  p999: (s: Stats) => s.latency_us.p999,
} satisfies Record<string, (s: Stats) => number | null>;

export type Column = keyof typeof COLUMNS;
export type History = Record<Column, (number | null)[]>;

/** The same columns of the samples that the server has kept. */
export const columnsOf = (recent: Recent): History => ({
  time: recent.time_ms.map((ms) => (ms ?? 0) / 1000),
  websocket: recent.websocket,
  sse: recent.sse,
  longpoll: recent.longpoll,
  mqtt: recent.mqtt,
  centrifugo: recent.centrifugo,
  in: recent.in_per_s,
  out: recent.out_per_s,
  p50: recent.p50_us,
  p99: recent.p99_us,
  p999: recent.p999_us,
});

/** `before` in front of `history`, as far as it is older and there is room. */
export function joined(before: History, history: History): History {
  const first = history.time[0] ?? Infinity;
  const older = before.time.filter((time) => (time ?? 0) < first).length;
  const join = (name: Column) => [...before[name].slice(0, older), ...history[name]].slice(-HISTORY_MAX);
  return Object.fromEntries(Object.keys(history).map((name) => [name, join(name as Column)])) as unknown as History;
}

export const emptyHistory = (): History =>
  Object.fromEntries(Object.keys(COLUMNS).map((name) => [name, []])) as unknown as History;

/** Adds a report; its oldest goes when there are too many. */
export function append(history: History, stats: Stats): void {
  for (const [name, read] of Object.entries(COLUMNS)) {
    const column = history[name as Column];
    column.push(read(stats));
    if (column.length > HISTORY_MAX) column.shift();
  }
}
