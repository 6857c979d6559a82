/** How transports are called. */

export const TRANSPORTS: Record<string, string> = {
  http: "HTTP",
  longpoll: "long-poll",
  sse: "SSE",
  websocket: "WebSocket",
  mqtt: "MQTT",
  mqtt_websocket: "MQTT over WebSocket",
  centrifugo: "Centrifugo",
};

/** How a transport of the API is called. */
export function transport(name: string): string {
  return TRANSPORTS[name] ?? name;
}
