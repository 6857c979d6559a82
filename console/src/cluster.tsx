/** The nodes of a cluster, each with a link to its own console, and the problems of the cluster. */

import type { Cluster, ClusterNode } from "./api";
import { duration, exact, many } from "./format";
import { Table, Trouble } from "./parts";
import { EVERY_MS, usePolled } from "./poll";
import { useApi } from "./store";

export function Nodes() {
  const api = useApi();
  const { got: cluster, error } = usePolled(() => api.cluster(), () => EVERY_MS, [api]);
  return (
    <section class="panel" aria-labelledby="nodes">
      <h2 id="nodes">Nodes{cluster !== null && ` of the cluster ${cluster.name}`}</h2>
      {error !== null && <Trouble>{error.message}</Trouble>}
      {cluster?.problems.map((problem) => <Trouble key={problem}>{problem}</Trouble>)}
      {cluster !== null && <Shown cluster={cluster} />}
    </section>
  );
}

function Shown({ cluster }: { cluster: Cluster }) {
  const { sum } = cluster;
  const silent = sum.silent.length === 0 ? "" : `. Without the subscriptions of ${sum.silent.join(", ")}, which did not report them`;
  return (
    <>
      <Table
        label="Nodes"
        heads={["Node", "State", "#Connections", "#Subscriptions", "#Batches behind", "#Last report"]}
        rows={cluster.nodes.map((node) => ({
          key: node.name,
          cells: [
            <Name node={node} />,
            node.told === null ? "silent" : node.told.ready ? "ready" : "not ready",
            exact(node.clients),
            exact(node.told?.subscriptions),
            exact(node.told?.lag),
            `${duration(node.age_s)} ago`,
          ],
        }))}
      />
      <p class="hint">
        All nodes: {many(sum.clients, "connection")}, {many(sum.subscriptions, "subscription")}, as of at most {duration(Math.ceil(sum.age_s))} ago{silent}.
      </p>
    </>
  );
}

/** Other nodes say where they are: nothing but a web address becomes a link. */
function Name({ node }: { node: ClusterNode }) {
  if (node.this) return <>{node.name} (this one)</>;
  return /^https?:\/\//.test(node.admin) ? <a href={`${node.admin}/`}>{node.name}</a> : <>{node.name}</>;
}
