/** MQTT sessions whose clients are away: a list, and a page of each. Those of connected clients are connections. */

import { useState } from "preact/hooks";
import type { ApiError, Session, SessionName } from "./api";
import { bytes, duration, exact } from "./format";
import { Breaking, Facts, NONE, Question, Table, Trouble } from "./parts";
import { EVERY_MS, readRows, usePolled } from "./poll";
import { to } from "./route";
import { useApi } from "./store";

const SHOWN = 100;

export function Away() {
  const api = useApi();
  const { got, error } = usePolled(
    (gone) => readRows((cursor, limit) => api.sessions(cursor, limit), null, SHOWN, gone),
    // A search through the whole table is not repeated.
    ({ answers }) => (answers === 1 ? EVERY_MS : 0),
    [api],
  );
  if (error !== null) return <Trouble>{error.message}</Trouble>;
  if (got === null || got.rows.length === 0) return null;
  return (
    <section class="panel sessions" aria-labelledby="sessions">
      <h2 id="sessions">
        MQTT sessions that are away <small>their clients get what they missed when they connect again</small>
      </h2>
      <Table
        label="MQTT sessions that are away"
        heads={["*Client id", "User", "#Ends in", "#Bytes"]}
        rows={got.rows.map((one) => ({
          key: `${one.client_id} ${one.user}`,
          cells: [
            <a href={to("session", placeOf(one))}>
              <code>
                <Breaking>{one.client_id}</Breaking>
              </code>
            </a>,
            one.user ?? NONE,
            one.expires_in_s === null ? "never" : duration(one.expires_in_s),
            bytes(one.bytes),
          ],
        }))}
      />
      {got.next !== null && <p class="hint">There are more. These are the first {exact(got.rows.length)} that the server found.</p>}
    </section>
  );
}

/** Client id and user as a part of the address: either may have any character. */
const placeOf = ({ client_id, user }: Session) => [client_id, user ?? ""].map(encodeURIComponent).join("/");

function nameIn(place: string): SessionName {
  try {
    const [client_id = "", user = ""] = place.split("/").map(decodeURIComponent);
    return { client_id, user };
  } catch {
    return { client_id: place, user: "" };
  }
}

/** The page of a session that is away. */
export function SessionView({ place }: { place: string }) {
  const api = useApi();
  const name = nameIn(place);
  const { got, error, now } = usePolled(() => api.session(name), () => EVERY_MS, [api, place]);
  const [asking, ask] = useState(false);
  const [trouble, complain] = useState("");
  const away = error?.status === 404;
  const end = () => api.endSession(name).then(now, (error: ApiError) => (error.status === 404 ? now() : complain(error.message)));
  return (
    <>
      <p class="crumbs">
        <a href={to("connections")}>Connections</a> /{" "}
        <strong>
          <Breaking>{name.client_id}</Breaking>
        </strong>
      </p>
      <section class="panel session" aria-label={`Session of ${name.client_id}`}>
        {away && <p class="hint">No session of this client is away: it has ended, or its client is connected.</p>}
        {!away && error !== null && <Trouble>{error.message}</Trouble>}
        {trouble !== "" && <Trouble>{trouble}</Trouble>}
        {got !== null && !away && (
          <>
            <Facts
              of={[
                ["User", got.user ?? NONE],
                ["Ends in", got.expires_in_s === null ? "never" : duration(got.expires_in_s)],
                ["Bytes", bytes(got.bytes)],
                ["Subscriptions", exact(got.subscriptions?.length ?? 0)],
              ]}
            />
            <Table
              label="Subscriptions"
              heads={["*Topic or filter", "#QoS"]}
              rows={(got.subscriptions ?? []).map(({ filter, qos }) => ({ key: filter, cells: [<code><Breaking>{filter}</Breaking></code>, String(qos)] }))}
            />
            {asking && (
              <Question
                label="End this session?"
                yes="End it"
                no="Leave it"
                answer={(sure) => {
                  ask(false);
                  if (sure) void end();
                }}
              >
                End the session of {name.client_id}? The messages that wait for it are gone, and its will is published.
              </Question>
            )}
            <p class="row">
              <button type="button" class="quiet" onClick={() => ask(true)}>
                End this session
              </button>
            </p>
          </>
        )}
      </section>
    </>
  );
}
