/** Who reads more slowly than is published to them. */

import { useEffect, useState } from "preact/hooks";
import type { ApiError, Connection, Stats } from "./api";
import { bytes, duration, exact, rate } from "./format";
import { transport } from "./overview";
import { Breaking, Table, Trouble } from "./parts";
import { to } from "./route";
import { useApi } from "./store";

const EVERY_MS = 2_000;
const SHOWN = 100;

export function Slow({ stats }: { stats: Stats }) {
  const api = useApi();
  const [slow, show] = useState<Connection[]>([]);
  const [more, tell] = useState(false);
  const [trouble, say] = useState("");
  const [again, ask] = useState(0);

  useEffect(() => {
    let gone = false;
    let timer = 0;
    const read = async () => {
      if (!document.hidden) {
        try {
          const got = await api.slow(null, SHOWN);
          if (gone) return;
          show([...got.connections].sort((a, b) => b.outbox_bytes - a.outbox_bytes));
          tell(got.next !== null);
          say("");
        } catch (error) {
          if (gone) return;
          say((error as ApiError).message);
        }
      }
      if (!gone) timer = window.setTimeout(() => void read(), EVERY_MS);
    };
    void read();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [api, again]);

  const disconnect = (id: string) =>
    api.disconnect(id).then(
      () => ask(again + 1),
      (error: ApiError) => (error.status === 404 ? ask(again + 1) : say(error.message)),
    );

  return (
    <section class="panel" aria-labelledby="slow">
      <h2 id="slow">Slow consumers</h2>
      <dl class="facts">
        <div>
          <dt>Now</dt>
          <dd>{exact(stats.slow.consumers)}</dd>
        </div>
        <div>
          <dt>Waiting for them</dt>
          <dd>{bytes(stats.slow.outbox_bytes)}</dd>
        </div>
        <div>
          <dt>Fell back to the log</dt>
          <dd>{rate(stats.slow.fallbacks_per_s)}/s</dd>
        </div>
        <div>
          <dt>Gaps told</dt>
          <dd>
            {rate(stats.slow.gaps_per_s)}/s · {exact(stats.slow.gaps_total)} since start
          </dd>
        </div>
      </dl>
      <p class="hint">
        Their sockets take less than is published. What waits is bounded; past that they read on from the log, or are disconnected where it no longer
        reaches back.
      </p>
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
      <Table label="Slow consumers" heads={["Connection", "Transport", "Address", "User", "Topics", "#Waiting", "State", "#Silent for", "Action"]}>
        {slow.map((one) => (
          <tr key={one.id}>
            <th scope="row">
              <code>{one.id}</code>
            </th>
            <td>{transport(one.transport)}</td>
            <td>{one.address ?? "\u2013"}</td>
            <td>{one.user ?? one.client_id ?? "\u2013"}</td>
            <td class="name">
              {one.topics.slice(0, 3).map((name, i) => (
                <>
                  {i > 0 && ", "}
                  <a href={to("topic", name)}>
                    <Breaking>{name}</Breaking>
                  </a>
                </>
              ))}
              {one.topic_count > 3 && ` and ${exact(one.topic_count - 3)} more`}
              {one.filters.slice(0, 3).map((filter) => (
                <code key={filter}> {filter}</code>
              ))}
            </td>
            <td class="n">{bytes(one.outbox_bytes)}</td>
            <td>{one.behind ? "reads from the log" : one.state}</td>
            <td class="n">{duration(one.silent_s)}</td>
            <td>
              <button type="button" class="quiet" aria-label={`Disconnect ${one.id}`} onClick={() => void disconnect(one.id)}>
                Disconnect
              </button>
            </td>
          </tr>
        ))}
      </Table>
      {slow.length === 0 && trouble === "" && <p class="hint">Nobody is slow.</p>}
      {more && <p class="hint">There are more; these are the first that were found.</p>}
    </section>
  );
}
