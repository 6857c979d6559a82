/** Who reads more slowly than is published to them. */

import { useEffect, useState } from "preact/hooks";
import type { ApiError, Connection, Stats } from "./api";
import { ConnectionTable } from "./connections";
import { bytes, exact, rate } from "./format";
import { Trouble } from "./parts";
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
      <ConnectionTable label="Slow consumers" connections={slow} ended={() => ask(again + 1)} complain={say} />
      {slow.length === 0 && trouble === "" && <p class="hint">Nobody is slow.</p>}
      {more && <p class="hint">There are more; these are the first that were found.</p>}
    </section>
  );
}
