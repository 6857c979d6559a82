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
          Each is a setting of that name, or a limit of this host. Where a limit is each shard's own, the fullest shard is shown.
        </p>
        <LimitRows limits={nearest(stats.limits)} />
      </section>
      <section class="panel" aria-labelledby="tables">
        <h2 id="tables">Memory by table</h2>
        <Table label="Memory by table" heads={["Table", "#Bytes", "#Bytes a connection"]}>
          {stats.memory.tables.map((table) => (
            <tr key={table.name}>
              <th scope="row">{table.name.replaceAll("_", " ")}</th>
              <td class="n">{bytes(table.bytes)}</td>
              <td class="n">{stats.connections.total < 1000 ? bytes(null) : bytes(table.bytes / stats.connections.total)}</td>
            </tr>
          ))}
        </Table>
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
