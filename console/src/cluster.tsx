/** The nodes of a cluster, each with a link to its own console, and what is wrong. */

import { useEffect, useState } from "preact/hooks";
import type { ApiError, Cluster, ClusterNode } from "./api";
import { duration, exact, many } from "./format";
import { Table, Trouble } from "./parts";
import { useApi } from "./store";

/** How often the node is asked. */
const EVERY_MS = 2_000;

export function Nodes() {
  const api = useApi();
  const [cluster, show] = useState<Cluster | null>(null);
  const [trouble, complain] = useState("");
  useEffect(() => {
    let timer = 0;
    let gone = false;
    const ask = async () => {
      try {
        const got = document.hidden ? null : await api.cluster();
        if (got !== null && !gone) {
          show(got);
          complain("");
        }
      } catch (error) {
        if (!gone) complain((error as ApiError).message);
      }
      if (!gone) timer = window.setTimeout(() => void ask(), EVERY_MS);
    };
    void ask();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [api]);
  return (
    <section class="panel" aria-labelledby="nodes">
      <h2 id="nodes">Nodes{cluster !== null && ` of ${cluster.name}`}</h2>
      {trouble !== "" && <Trouble>{trouble}</Trouble>}
      {cluster?.problems.map((problem) => <Trouble key={problem}>{problem}</Trouble>)}
      {cluster !== null && <Shown cluster={cluster} />}
    </section>
  );
}

function Shown({ cluster }: { cluster: Cluster }) {
  const { sum } = cluster;
  const silent = sum.silent.length === 0 ? "" : `, without subscriptions of ${sum.silent.join(", ")}, which did not tell`;
  return (
    <>
      <Table label="Nodes" heads={["Node", "State", "#Connections", "#Subscriptions", "#Batches behind", "#Heard of"]}>
        {cluster.nodes.map((node) => (
          <tr key={node.name}>
            <th scope="row">
              <Name node={node} />
            </th>
            <td>{node.told === null ? "silent" : node.told.ready ? "ready" : "not ready"}</td>
            <td class="n">{exact(node.clients)}</td>
            <td class="n">{node.told === null ? "\u2013" : exact(node.told.subscriptions)}</td>
            <td class="n">{node.told === null ? "\u2013" : exact(node.told.lag)}</td>
            <td class="n">{duration(node.age_s)} ago</td>
          </tr>
        ))}
      </Table>
      <p class="hint">
        All nodes: {many(sum.clients, "connection")}, {many(sum.subscriptions, "subscription")}, at most {duration(Math.ceil(sum.age_s))} old{silent}.
      </p>
    </>
  );
}

/** Other nodes say where they are: nothing but a web address becomes a link. */
function Name({ node }: { node: ClusterNode }) {
  if (node.this) return <>{node.name} (this one)</>;
  return /^https?:\/\//.test(node.admin) ? <a href={`${node.admin}/`}>{node.name}</a> : <>{node.name}</>;
}
