/**
 * What the page knows: the newest stats, their last minutes as columns for the charts, whether the stream is alive, the token and the theme.
 *
 * The token lives in this tab and ends with it. The theme is kept for the browser.
 */

import { useEffect, useState } from "preact/hooks";
import { Api, STATS, type ApiError, type Stats } from "./api";
import { append, columnsOf, emptyHistory, joined, type History } from "./history";
import { follow } from "./stream";

/** The server speaks once a second. */
const SILENT_MS = 6_000;
/** A hidden page has no stream, and asks so often for its charts. */
const HIDDEN_EVERY_MS = 5_000;

export type Theme = "system" | "light" | "dark";
export type Link = "connecting" | "live" | "lost" | "unauthorized";

export interface State {
  link: Link;
  /** Why the stream is lost. */
  why: string;
  /** When it is opened again. */
  retry_ms: number;
  stats: Stats | null;
  history: History;
  token: string;
  theme: Theme;
}

class Store {
  state: State = {
    link: "connecting",
    why: "",
    retry_ms: 0,
    stats: null,
    history: emptyHistory(),
    token: sessionStorage.getItem("crore.token") ?? "",
    theme: themeOf(localStorage.getItem("crore.theme")),
  };
  #listeners = new Set<() => void>();
  #stop = () => {};
  #hidden = 0;

  listen(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Opens the stream of stats, in place of the one before. */
  start(): void {
    this.#stop();
    clearInterval(this.#hidden);
    this.#hidden = window.setInterval(() => document.hidden && void this.#ask(), HIDDEN_EVERY_MS);
    this.#set({ link: "connecting" });
    this.#stop = follow(STATS, this.state.token, SILENT_MS, {
      event: (event) => this.#take(JSON.parse(event.data) as Stats),
      lost: (why, wait_ms) => this.#set({ link: "lost", why, retry_ms: Date.now() + wait_ms }),
      refused: (why) => this.#set({ link: "lost", why, retry_ms: 0 }),
      unauthorized: () => this.unauthorized(),
    });
  }

  /** `""` forgets it. */
  signIn(token: string): void {
    if (token === "") sessionStorage.removeItem("crore.token");
    else sessionStorage.setItem("crore.token", token);
    this.#set({ token });
    this.start();
  }

  unauthorized(): void {
    this.#stop();
    clearInterval(this.#hidden);
    this.#set({ link: "unauthorized" });
  }

  theme(theme: Theme): void {
    if (theme === "system") localStorage.removeItem("crore.theme");
    else localStorage.setItem("crore.theme", theme);
    dress(theme);
    this.#set({ theme });
  }

  async #ask(): Promise<void> {
    try {
      this.#take(await new Api(this.state.token, () => this.unauthorized()).stats());
    } catch (error) {
      const { status, message } = error as ApiError;
      if (status !== 401) this.#set({ link: "lost", why: message, retry_ms: Date.now() + HIDDEN_EVERY_MS });
    }
  }

  #take(stats: Stats): void {
    const before = this.state.history.time.at(-1) ?? 0;
    // A server that was started anew is another one: its numbers do not go on from the old ones.
    const another = this.state.stats !== null && stats.uptime_s < this.state.stats.uptime_s;
    const anew = another || stats.time_ms / 1000 < before;
    const history = anew ? emptyHistory() : this.state.history;
    if (history.time.length === 0) void this.#seed();
    append(history, stats);
    this.#set({ stats, history, link: "live", why: "" });
  }

  /** Puts what the server has kept before the first report. Charts that begin with the page do without. */
  async #seed(): Promise<void> {
    try {
      const recent = await new Api(this.state.token, () => {}).recent();
      this.#set({ history: joined(columnsOf(recent), this.state.history) });
    } catch {
      // The next reports come all the same.
    }
  }

  #set(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    for (const listener of this.#listeners) listener();
  }
}

function themeOf(text: string | null): Theme {
  return text === "light" || text === "dark" ? text : "system";
}

/** Before anything is drawn by it: charts read the colours as they are when they are made. */
function dress(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

export const store = new Store();
dress(store.state.theme);

/** The state. A component that uses it is drawn again when it changes. */
export function useStore(): State {
  const [state, set] = useState(store.state);
  useEffect(() => {
    set(store.state);
    return store.listen(() => set(store.state));
  }, []);
  return state;
}

/** Requests with the present token. */
export function useApi(): Api {
  const { token } = useStore();
  const [api, set] = useState(() => new Api(token, () => store.unauthorized()));
  useEffect(() => {
    if (api.token !== token) set(new Api(token, () => store.unauthorized()));
  }, [token]);
  return api;
}
