/** The page: its head, the views, and the messages while the server does not answer or needs a token. */

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ConnectionView } from "./connection";
import { Connections } from "./connections";
import { Limits } from "./limits";
import { Overview } from "./overview";
import { Retry } from "./parts";
import { to, useRoute, type Route, type View } from "./route";
import { Away, SessionView } from "./sessions";
import { Settings } from "./settings";
import { Slow } from "./slow";
import { store, useStore, type State, type Theme } from "./store";
import "./style.css";
import { TopicView } from "./topic";
import { Topics } from "./topics";

const TABS: [View, string][] = [
  ["overview", "Overview"],
  ["topics", "Topics"],
  ["connections", "Connections"],
  ["slow", "Slow"],
  ["limits", "Limits"],
  ["settings", "Settings"],
];

/** The tab that the page of one thing belongs to. */
const PARENTS: Partial<Record<View, View>> = { topic: "topics", connection: "connections", session: "connections" };

function App() {
  const state = useStore();
  const route = useRoute();

  const main = useRef<HTMLElement>(null);

  useEffect(() => store.start(), []);
  useEffect(() => {
    document.title = title(route);
    // Where the link that led here is gone, the keyboard goes on from the new view.
    if (document.activeElement === document.body) main.current?.focus();
  }, [route.view, route.of]);

  return (
    <>
      <header>
        <h1>
          <img src="icon.svg" alt="" width="24" height="24" /> Crore
          {state.stats !== null && (
            <small>
              {state.stats.version} on {state.stats.host}
            </small>
          )}
        </h1>
        <nav aria-label="Views">
          {TABS.map(([view, name]) => (
            <a
              key={view}
              href={view === "overview" ? "#/" : to(view)}
              aria-current={view === (PARENTS[route.view] ?? route.view) ? "page" : undefined}
            >
              {name}
            </a>
          ))}
        </nav>
        <div class="tools">
          <LinkState state={state} />
          <ThemeButton theme={state.theme} />
          {state.token !== "" && (
            <button type="button" class="quiet" onClick={() => store.signIn("")}>
              Forget token
            </button>
          )}
        </div>
      </header>
      {state.link === "lost" && (
        <p class="banner" role="alert">
          {capital(state.why)}. {state.retry_ms > 0 && <Retry at_ms={state.retry_ms} />}
          {state.stats !== null && " The numbers below are from before."}
        </p>
      )}
      <main ref={main} tabIndex={-1} class={state.link === "lost" ? "stale" : ""}>
        {state.link === "unauthorized" ? <Token wrong={state.token !== ""} /> : <Page state={state} route={route} />}
      </main>
    </>
  );
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

/** What the browser's tab and history show. */
function title({ view, of }: Route): string {
  const name = view === "topic" || view === "connection" ? of : TABS.find(([tab]) => tab === view)?.[1];
  return view === "overview" || name === undefined || name === "" ? "Crore" : `${name} \u00b7 Crore`;
}

function Page({ state, route }: { state: State; route: Route }) {
  if (route.view === "topics") return <Topics filter={route.of || "#"} />;
  if (route.view === "unknown") return <Unknown />;
  if (route.view === "connections") {
    return (
      <>
        <Connections />
        <Away />
      </>
    );
  }
  if (route.view === "connection") return <ConnectionView key={route.of} id={route.of} />;
  if (route.view === "session") return <SessionView key={route.of} place={route.of} />;
  if (route.view === "settings") return <Settings />;
  if (route.view === "topic") return <TopicView key={route.of} name={route.of} />;
  if (state.stats === null) return <p class="hint">{state.link === "lost" ? "" : "Asking the server\u2026"}</p>;
  if (route.view === "slow") return <Slow stats={state.stats} />;
  if (route.view === "limits") return <Limits stats={state.stats} />;
  return <Overview state={state} stats={state.stats} />;
}

function Unknown() {
  return (
    <section class="panel" aria-labelledby="unknown">
      <h2 id="unknown">There is no such page</h2>
      <p>
        <code>{location.hash}</code> names no view of the console. <a href="#/">Go to the overview</a>
      </p>
    </section>
  );
}

const LINKS: Record<State["link"], string> = {
  connecting: "connecting",
  live: "live",
  lost: "disconnected",
  unauthorized: "token needed",
};

function LinkState({ state }: { state: State }) {
  return (
    <span class="link" role="status" data-link={state.link}>
      <span class={`dot ${state.link}`} aria-hidden="true" /> {LINKS[state.link]}
    </span>
  );
}

const NEXT: Record<Theme, Theme> = { system: "dark", dark: "light", light: "system" };

function ThemeButton({ theme }: { theme: Theme }) {
  return (
    <button type="button" class="quiet" onClick={() => store.theme(NEXT[theme])} aria-label={`Colours: ${theme}. Change to ${NEXT[theme]}`}>
      {theme === "system" ? "\u25d0" : theme === "dark" ? "\u25cf" : "\u25cb"} <span class="wide">{theme}</span>
    </button>
  );
}

function Token({ wrong }: { wrong: boolean }) {
  const [token, type] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <section class="panel narrow" aria-labelledby="token">
      <h2 id="token">This server needs a token</h2>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (token !== "") store.signIn(token.trim());
        }}
      >
        <label>
          <span>The value of admin.token in the server's settings</span>
          <input
            ref={field}
            name="token"
            type="password"
            autocomplete="off"
            value={token}
            onInput={(event) => type(event.currentTarget.value)}
          />
        </label>
        {wrong && (
          <p class="trouble" role="alert">
            This is not the server's token.
          </p>
        )}
        <div class="row">
          <p class="hint grow">Kept in this tab until you close it.</p>
          <button type="submit">Sign in</button>
        </div>
      </form>
    </section>
  );
}

const root = document.getElementById("app");
if (root !== null) render(<App />, root);
