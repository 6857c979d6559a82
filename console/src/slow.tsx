/** Connections that read more slowly than messages are published to them. */

import { useState } from "preact/hooks";
import type { Stats } from "./api";
import { ConnectionTable } from "./connections";
import { bytes, exact, rate } from "./format";
import { Trouble } from "./parts";
import { EVERY_MS, usePolled } from "./poll";
import { useApi } from "./store";

const SHOWN = 100;

export function Slow({ stats }: { stats: Stats }) {
  const api = useApi();
  const { got, error, now } = usePolled(() => api.connections({ slow: "true" }, null, SHOWN), () => EVERY_MS, [api]);
  const [trouble, complain] = useState("");
  const slow = [...(got?.rows ?? [])].sort((a, b) => b.outbox_bytes - a.outbox_bytes);
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
          <dt>Went on from the log</dt>
          <dd>{rate(stats.slow.fallbacks_per_s)}/s</dd>
        </div>
        <div>
          <dt>Gaps</dt>
          <dd>
            {rate(stats.slow.gaps_per_s)}/s · {exact(stats.slow.gaps_total)} since start
          </dd>
        </div>
      </dl>
      <p class="hint">
        A slow consumer reads its connection more slowly than messages are published to it. A bounded number of bytes waits for it in memory. Past that
        it reads from the topic's log, and loses nothing while the log keeps the messages. If the log no longer does, the client gets a gap, or is
        disconnected.
      </p>
      {error !== null && <Trouble>{error.message}</Trouble>}
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
      {slow.length > 0 && <ConnectionTable label="Slow consumers" connections={slow} ended={now} complain={complain} />}
      {got !== null && slow.length === 0 && <p class="hint">No connection is slow.</p>}
      {got !== null && got.next !== null && <p class="hint">There are more. These are the first {exact(slow.length)} that the server found.</p>}
    </section>
  );
}
