/** How transports are called. */

import type { Connection } from "./api";

export const TRANSPORTS: Record<string, string> = {
  http: "HTTP",
  longpoll: "long-poll",
  sse: "SSE",
  websocket: "WebSocket",
  mqtt: "MQTT",
  mqtt_websocket: "MQTT over WebSocket",
  centrifugo: "Centrifugo",
  pusher: "Pusher",
  http2: "HTTP/2",
};

/** How a transport of the API is called. */
export function transport(name: string): string {
  return TRANSPORTS[name] ?? name;
}

/** The same for a connection, which may be a stream of HTTP/2. */
export function protocol(of: Connection): string {
  const name = transport(of.transport);
  return of.http2 === null ? name : `${name} over HTTP/2`;
}
