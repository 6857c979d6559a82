/** Every limit that the server counts against, nearest first. */

import type { Limit, Stats } from "./api";
import { bytes, exact, percent } from "./format";
import { Breaking, Meter, Table } from "./parts";

/** Those that are nearest first. */
export function nearest(limits: Limit[]): Limit[] {
  return [...limits].sort((a, b) => b.share - a.share || a.name.localeCompare(b.name));
}

export function Limits({ stats }: { stats: Stats }) {
  return (
    <>
      <section class="panel" aria-labelledby="limits">
        <h2 id="limits">Limits</h2>
        <p class="hint">
          Each name is a setting, or a limit of this host. Where each shard has a limit of its own, the row shows the fullest shard.
        </p>
        <LimitRows limits={nearest(stats.limits)} />
      </section>
      <section class="panel" aria-labelledby="tables">
        <h2 id="tables">Memory by purpose</h2>
        <Table
          label="Memory by purpose"
          heads={["*Used for", "#Bytes", "#Bytes a connection"]}
          rows={stats.memory.tables.map((table) => ({
            key: table.name,
            cells: [
              <span title={`crore_table_memory_bytes{table="${table.name}"}`}>{table.what}</span>,
              bytes(table.bytes),
              stats.connections.total < 1000 ? bytes(null) : bytes(table.bytes / stats.connections.total),
            ],
          }))}
        />
      </section>
    </>
  );
}

export function LimitRows({ limits }: { limits: Limit[] }) {
  return (
    <ul class="limits">
      {limits.map((limit) => {
        const show = limit.unit === "bytes" ? bytes : exact;
        return (
          <li key={limit.name}>
            <code>
              <Breaking>{limit.name}</Breaking>
            </code>
            <Meter share={limit.share} label={limit.name} text={percent(limit.share)} />
            <span class="of">
              {show(limit.used)} of {show(limit.limit)}
            </span>
            <span class="where">{limit.shard === null ? "all shards" : `shard ${limit.shard}`}</span>
          </li>
        );
      })}
    </ul>
  );
}
