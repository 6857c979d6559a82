//! Checks of the kernel's connection tracker (`nf_conntrack`). It has an entry for each connection if a rule of a firewall or of NAT uses
//! it.

use super::check::{Check, Verdict, sysctl_fix};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::{format_bytes, format_count};

const COUNT: &str = "net.netfilter.nf_conntrack_count";
const MAX: &str = "net.netfilter.nf_conntrack_max";
const BUCKETS: &str = "net.netfilter.nf_conntrack_buckets";

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    let Some(entries) = host.number(COUNT) else {
        return vec![
            Check::new(MAX, Some("not loaded".to_string()), "not loaded, or enough")
                .with_reason("connections are not tracked, so no table can get full"),
        ];
    };
    let recommended = formula::conntrack_entries(workload.connections);
    let reason = format!(
        "an entry of {} B for each connection, and a quarter more for connections that have ended: {}. At the limit the kernel drops new connections. \
         Or do not track the server's port: nft add rule ip raw prerouting tcp dport PORT notrack, and the same for output",
        formula::TRACKED_BYTES,
        format_bytes(recommended * formula::TRACKED_BYTES),
    );
    if !host.tracks_connections() {
        return vec![
            Check::new(
                MAX,
                host.number(MAX)
                    .map(|max| format!("{}, and nothing is tracked", format_count(max))),
                format!(
                    "at least {} if connections are tracked",
                    format_count(recommended)
                ),
            )
            .with_reason(reason)
            .with_verdict(Verdict::Note),
        ];
    }
    let value = host.number(MAX);
    let max_check = Check::new(
        MAX,
        value.map(|value| format!("{}, {} used", format_count(value), format_count(entries))),
        format!("at least {}", format_count(recommended)),
    )
    .with_reason(reason)
    .change_unless(
        value.is_none_or(|value| value >= recommended),
        Verdict::Change,
        [sysctl_fix(MAX, recommended)],
    );
    let buckets_check = Check::at_least_check(
        host,
        BUCKETS,
        formula::conntrack_buckets(workload.connections),
        Verdict::Advice,
    )
    .with_reason("four entries in a bucket; with more, each packet searches a long chain");
    vec![max_check, buckets_check]
}
