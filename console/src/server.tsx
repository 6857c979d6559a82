/** The server itself: its name and version, its refusals, and buttons to reload and to drain it, which ask first. */

import { useState } from "preact/hooks";
import type { ApiError, Stats } from "./api";
import { exact, many, rate } from "./format";
import { Question, Table, Trouble } from "./parts";
import { useApi } from "./store";

type Order = "reload" | "drain";

export function Server({ stats }: { stats: Stats }) {
  const api = useApi();
  const [asking, ask] = useState<Order | null>(null);
  const [said, say] = useState("");
  const [trouble, complain] = useState("");

  const carryOut = async (order: Order) => {
    ask(null);
    try {
      say(order === "reload" ? reloaded(await api.reload()) : `The server closes ${many((await api.drain()).connections, "connection")}, and then stops.`);
      complain("");
    } catch (error) {
      say("");
      complain((error as ApiError).message);
    }
  };
  const facts: [string, string][] = [
    ["Host", stats.host || "\u2013"],
    ["Version", stats.version],
    ["Clients connect to", stats.url],
  ];
  return (
    <section class="panel server" aria-labelledby="server">
      <div class="row">
        <h2 id="server" class="grow">
          Server
        </h2>
        <button type="button" class="quiet" onClick={() => ask("reload")}>
          Reload settings
        </button>
        <button type="button" class="quiet" onClick={() => ask("drain")}>
          Drain
        </button>
      </div>
      {asking === "reload" && (
        <Question label="Reload the settings?" yes="Reload" no="Leave them" answer={(sure) => (sure ? void carryOut("reload") : ask(null))}>
          Read the settings file, certificates, keys and users again? Clients stay connected, unless the new settings take a right from them.
        </Question>
      )}
      {asking === "drain" && (
        <Question label="Drain this server?" yes="Drain and stop" no="Cancel" answer={(sure) => (sure ? void carryOut("drain") : ask(null))}>
          Close {many(stats.connections.total, "connection")} bit by bit and then stop the server? It takes no new connections from now on. This page loses its
          server too.
        </Question>
      )}
      <dl class="facts">
        {facts.map(([what, value]) => (
          <div key={what}>
            <dt>{what}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <p class="hint" role="status">
        {said}
      </p>
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
    </section>
  );
}

function reloaded({ changed, kept }: { changed: string[]; kept: string[] }): string {
  const now = changed.length === 0 ? "Nothing has changed." : `Changed: ${changed.join(", ")}.`;
  return kept.length === 0 ? now : `${now} After a restart: ${kept.join(", ")}.`;
}

export function Refusals({ stats }: { stats: Stats }) {
  const some = stats.refusals.filter((one) => one.total > 0).sort((a, b) => b.total - a.total);
  return (
    <section class="panel refusals" aria-labelledby="refusals">
      <h2 id="refusals">Refusals</h2>
      {some.length === 0 ? (
        <p class="hint">No request was refused since the start.</p>
      ) : (
        <Table
          label="Refusals"
          heads={["Reason", "#Since start", "#Each second"]}
          rows={some.map((one) => ({ key: one.reason, cells: [one.reason, exact(one.total), rate(one.per_s)] }))}
        />
      )}
    </section>
  );
}

/** The first commands, for a server that has not been used yet. */
export function FirstSteps({ stats }: { stats: Stats }) {
  return (
    <section class="panel first" aria-labelledby="first">
      <h2 id="first">Nothing was published yet</h2>
      <p>
        <a class="button" href="#/topic/hello">
          Send a first message from this page
        </a>
      </p>
      <p>Or subscribe in one terminal and publish in another:</p>
      <pre>
        curl -N -H 'Accept: text/event-stream' {stats.url}/sub/hello{"\n"}
        curl -d 'first message' {stats.url}/pub/hello
      </pre>
      <p>A page of yours subscribes so, if the server is started with the page's origin (<code>crore serve --allowed-origin ORIGIN</code>):</p>
      <pre>new EventSource("{stats.url}/sub/hello").onmessage = (event) =&gt; console.log(event.data);</pre>
    </section>
  );
}
