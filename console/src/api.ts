/** The admin API as the console uses it: shapes, and one function for each request. docs/OPERATIONS.md describes it. */

export interface Stats {
  time_ms: number;
  uptime_s: number;
  version: string;
  host: string;
  /** Where clients find the server. */
  url: string;
  /** The name of the cluster of which it is a node; null where it is none. */
  cluster: string | null;
  connections: { total: number; by_transport: Record<string, number> };
  accepts_per_s: number;
  closes_per_s: number;
  messages: {
    in_per_s: number;
    out_per_s: number;
    in_bytes_per_s: number;
    out_bytes_per_s: number;
    in_total: number;
    out_total: number;
  };
  latency_us: {
    count: number;
    p50: number | null;
    p90: number | null;
    p99: number | null;
    p999: number | null;
    max: number | null;
  };
  topics: number;
  subscriptions: number;
  filters: number;
  sessions: number;
  slow: {
    consumers: number;
    outbox_bytes: number;
    fallbacks_per_s: number;
    gaps_per_s: number;
    gaps_total: number;
  };
  refusals: { reason: string; total: number; per_s: number }[];
  log: { messages: number; bytes: number };
  /** Null where messages are not durable. */
  disk: Disk | null;
  memory: {
    pss_bytes: number | null;
    per_connection_bytes: number | null;
    tables: { name: string; what: string; bytes: number }[];
  };
  shards: Shard[];
  limits: Limit[];
}

/** Samples of the last minutes, oldest first, a list for each line of the charts. */
export type Recent = Record<
  "time_ms" | "websocket" | "sse" | "longpoll" | "mqtt" | "centrifugo" | "in_per_s" | "out_per_s" | "p50_us" | "p99_us" | "p999_us",
  (number | null)[]
>;

/** The settings that hold. */
export interface Config {
  /** The file; null without one. */
  source: string | null;
  settings: Setting[];
}

export interface Setting {
  name: string;
  /** As a file has it. */
  value: string;
  /** `default`, `file`, `host`, or a flag. */
  source: string;
  restart: boolean;
  help: string;
}

/** The rules in their order, and the built-in one; each with all its keys. */
export interface Rules {
  rules: Record<string, unknown>[];
  default: Record<string, unknown>;
}

/** The cluster, as the node that is asked sees it. */
export interface Cluster {
  name: string;
  problems: string[];
  sum: { clients: number; subscriptions: number; age_s: number; silent: string[] };
  nodes: ClusterNode[];
}

export interface ClusterNode {
  name: string;
  /** The URL of its admin port; empty without one. */
  admin: string;
  this: boolean;
  age_s: number;
  clients: number;
  /** Null where nothing was heard of it for a minute. */
  told: { ready: boolean; lag: number; subscriptions: number; topics: number } | null;
}

export interface Disk {
  syncs_per_s: number;
  batches_per_sync: number;
  sync_us_mean: number;
  sync_us_p99: number | null;
  log_bytes: number;
  base_bytes: number;
  full: boolean;
  recovery_s: number;
}

export interface Shard {
  id: number;
  connections: number;
  in_per_s: number;
  out_per_s: number;
  /** The share of a core's time, 0 to 1. */
  load: number;
  turns_per_s: number;
  turn_us_mean: number;
  turn_us_max: number;
  topics: number;
  log_bytes: number;
  outbox_bytes: number;
  slow_consumers: number;
}

export interface Limit {
  name: string;
  unit: string;
  used: number;
  limit: number;
  /** 0 to 1. */
  share: number;
  /** The fullest shard, where the limit is each shard's own. */
  shard: number | null;
}

export interface Topic {
  name: string;
  home: number;
  messages: number;
  bytes: number;
  subscribers: number;
  offset: number;
  epoch: number;
  requested_s: number | null;
  /** Its filter. */
  rule: string;
  /** Whether it stands in no file. */
  built_in_rule: boolean;
  /** Of one topic that was asked for: subscribers at all nodes of a cluster, and nodes that did not answer. */
  cluster?: { subscribers: number; unanswered: string[] } | null;
}

/** A message of a topic's log. */
export interface Kept {
  offset: number;
  published_s: number;
  data: string | null;
  data_base64: string | null;
  content_type: string;
  event: string;
  key: string;
}

export interface KeptPage {
  messages: Kept[];
  /** `after` of the next page. */
  next: number | null;
  /** Messages between `after` and the first of these are gone. */
  lost: boolean;
}

export interface Connection {
  id: string;
  shard: number;
  transport: string;
  /** The id of the connection of HTTP/2 of which this one is a stream. */
  http2: string | null;
  state: string;
  address: string | null;
  user: string | null;
  client_id: string | null;
  topics: string[];
  topic_count: number;
  filters: string[];
  outbox_bytes: number;
  behind: boolean;
  silent_s: number;
  connected_unix_s: number;
  /** TLS of this server; a proxy may have ended another one. */
  tls: boolean;
  /** Null for other protocols. */
  mqtt: {
    version: string;
    keep_alive_s: number;
    in_flight: number;
    in_flight_max: number;
    waiting: number;
    session_expiry_s: number;
    subscriptions: Subscription[];
  } | null;
}

/** A subscription of an MQTT client. */
export interface Subscription {
  /** As in its SUBSCRIBE: `$share/GROUP/FILTER` of a shared one. */
  filter: string;
  qos: number;
  /** The group of a shared subscription. */
  share: string | null;
}

/** An MQTT session whose client is away. */
export interface Session {
  client_id: string;
  user: string | null;
  /** Null: it does not end by itself. */
  expires_in_s: number | null;
  bytes: number;
  /** Null in a list. */
  subscriptions: Subscription[] | null;
}

/** Whose session: an empty user is none. */
export interface SessionName {
  client_id: string;
  user: string;
}

/** A part of a list. */
export interface Page<T> {
  rows: T[];
  /** The cursor of the next part; null at the end. */
  next: string | null;
}

/** Which connections: those for which all that is given holds. */
export interface Which {
  slow?: string;
  filter?: string;
  user?: string;
  address?: string;
  transport?: string;
}

export interface Reloaded {
  changed: string[];
  /** Their new values count only after a restart. */
  kept: string[];
}

export interface Published {
  offset: number;
  epoch: number;
  subscribers: number;
  messages: number;
  last_message_id: string;
}

export interface Message {
  topic: string;
  data: string;
  content_type?: string;
  event?: string;
  key?: string;
  ttl_s?: number;
  retain?: boolean;
}

/** What `GET /api/v1/tail` sends for each message: the JSON envelope of docs/PROTOCOLS.md. */
export interface Envelope {
  topic: string;
  id: string;
  content_type?: string;
  event?: string;
  key?: string;
  data?: string;
  data_base64?: string;
}

export const STATS = "api/v1/stats";
/** The words for a request that never reached the server; a browser's own words for it name no cause. */
export const NO_ANSWER = "the server does not answer";

/** The path of the stream of a topic's messages, or of all that match a filter: those that come, or `since` a position too. */
export function tailPath(of: ({ topic: string } | { filter: string }) & { since?: string }): string {
  return `api/v1/tail?${new URLSearchParams(of as Record<string, string>)}`;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Requests with a token; `""` is none. */
export class Api {
  constructor(
    readonly token: string,
    readonly unauthorized: () => void,
  ) {}

  async topics(filter: string, cursor: string | null, limit: number): Promise<Page<Topic>> {
    const got = await this.#page<{ topics: Topic[] }>("topics", { filter }, cursor, limit);
    return { rows: got.topics, next: got.next };
  }

  async stats(): Promise<Stats> {
    return this.#get("stats", {});
  }

  async recent(): Promise<Recent> {
    return this.#get("stats/recent", {});
  }

  async config(): Promise<Config> {
    return this.#get("config", {});
  }

  async rules(): Promise<Rules> {
    return this.#get("rules", {});
  }

  async cluster(): Promise<Cluster> {
    return this.#get("cluster", {});
  }

  async topic(name: string): Promise<Topic> {
    return this.#get("topic", { name });
  }

  /** The messages behind the offset `after`, oldest first; from the oldest on without it. */
  async messages(name: string, after: number | null, limit: number): Promise<KeptPage> {
    return this.#get("topic/messages", { name, limit: String(limit), ...(after === null ? {} : { after: String(after) }) });
  }

  async purge(name: string): Promise<{ purged: number }> {
    return this.#ask("DELETE", `api/v1/topic/messages?${new URLSearchParams({ name })}`);
  }

  async connections(which: Which, cursor: string | null, limit: number): Promise<Page<Connection>> {
    const got = await this.#page<{ connections: Connection[] }>("connections", { ...which }, cursor, limit);
    return { rows: got.connections, next: got.next };
  }

  async sessions(cursor: string | null, limit: number): Promise<Page<Session>> {
    const got = await this.#page<{ sessions: Session[] }>("sessions", {}, cursor, limit);
    return { rows: got.sessions, next: got.next };
  }

  async connection(id: string): Promise<Connection> {
    return this.#get(`connections/${encodeURIComponent(id)}`, {});
  }

  async session(of: SessionName): Promise<Session> {
    return this.#get("session", { ...of });
  }

  async endSession(of: SessionName): Promise<void> {
    await this.#ask("DELETE", `api/v1/session?${new URLSearchParams({ ...of })}`);
  }

  async disconnectAll(which: Which): Promise<{ disconnected: number }> {
    return this.#ask("POST", "api/v1/connections/disconnect", which);
  }

  async reload(): Promise<Reloaded> {
    return this.#ask("POST", "api/v1/reload");
  }

  async drain(): Promise<{ connections: number }> {
    return this.#ask("POST", "api/v1/drain");
  }

  async disconnect(id: string): Promise<void> {
    await this.#ask("DELETE", `api/v1/connections/${encodeURIComponent(id)}`);
  }

  async publish(message: Message): Promise<Published> {
    return this.#ask("POST", "api/v1/publish", message);
  }

  #page<T>(path: string, query: Record<string, string>, cursor: string | null, limit: number): Promise<T & { next: string | null }> {
    return this.#get(path, { ...query, limit: String(limit), ...(cursor === null ? {} : { cursor }) });
  }

  #get<T>(path: string, query: Record<string, string>): Promise<T> {
    return this.#ask("GET", `api/v1/${path}?${new URLSearchParams(query)}`);
  }

  async #ask<T>(method: string, path: string, body?: unknown): Promise<T> {
    const headers: Record<string, string> = { Accept: "application/json" };
    if (this.token !== "") headers["Authorization"] = `Bearer ${this.token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const request: RequestInit = { method, headers, cache: "no-store", credentials: "omit" };
    if (body !== undefined) request.body = JSON.stringify(body);
    let response: Response;
    try {
      response = await fetch(path, request);
    } catch {
      throw new ApiError(0, NO_ANSWER);
    }
    const text = await response.text();
    if (response.status === 401) this.unauthorized();
    if (!response.ok) throw new ApiError(response.status, reason(text) ?? `status ${response.status}`);
    return JSON.parse(text) as T;
  }
}

/** The words of an error answer. */
export function reason(text: string): string | null {
  try {
    const error = (JSON.parse(text) as { error?: unknown }).error;
    return typeof error === "string" ? error : null;
  } catch {
    return text.trim().slice(0, 300) || null;
  }
}
