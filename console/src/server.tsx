/** The server itself: which one it is, whom it refused, and the two orders that concern all of it. Each order is asked about first. */

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
      say(order === "reload" ? reloaded(await api.reload()) : `${many((await api.drain()).connections, "connection")} will be moved off; then the server ends.`);
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
          Read the settings file, certificates, keys and users again? Clients stay, unless the new settings grant them less.
        </Question>
      )}
      {asking === "drain" && (
        <Question label="Drain this server?" yes="Drain and stop" no="Cancel" answer={(sure) => (sure ? void carryOut("drain") : ask(null))}>
          Move {many(stats.connections.total, "client")} off this server and end it? No new clients come in from then on, and this page ends with the server.
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
        <p class="hint">Nobody was refused since the start.</p>
      ) : (
        <Table label="Refusals" heads={["Reason", "#Since start", "#Each second"]}>
          {some.map((one) => (
            <tr key={one.reason}>
              <th scope="row">{one.reason}</th>
              <td class="n">{exact(one.total)}</td>
              <td class="n">{rate(one.per_s)}</td>
            </tr>
          ))}
        </Table>
      )}
    </section>
  );
}

/** What to do with a server that nobody has used. */
export function FirstSteps({ stats }: { stats: Stats }) {
  return (
    <section class="panel first" aria-labelledby="first">
      <h2 id="first">Nothing was published yet</h2>
      <p>Listen in one terminal, publish in another:</p>
      <pre>
        curl -N -H 'Accept: text/event-stream' {stats.url}/sub/hello{"\n"}
        curl -d 'first message' {stats.url}/pub/hello
      </pre>
      <p class="hint">
        Or <a href="#/topic/hello">publish from this page</a>.
      </p>
    </section>
  );
}
