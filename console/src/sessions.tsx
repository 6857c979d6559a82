/** MQTT sessions whose clients are away. Those of connected clients are connections. */

import { bytes, duration, exact } from "./format";
import { Breaking, NONE, Table, Trouble } from "./parts";
import { EVERY_MS, readRows, usePolled } from "./poll";
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
            <code>
              <Breaking>{one.client_id}</Breaking>
            </code>,
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
