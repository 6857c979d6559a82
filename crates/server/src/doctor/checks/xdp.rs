//! Checks of the interface of `xdp.listen`, if that is set.

use super::check::{Check, Verdict};
use crate::doctor::workload::Workload;
use crate::settings::numbers::format_count;

pub fn checks(workload: &Workload) -> Option<Check> {
    const SETTING: &str = "xdp.listen";
    let xdp = workload.xdp.as_ref()?;
    Some(match &xdp.queues {
        Err(fault) => Check::new(SETTING, Some(fault.clone()), "an interface that can be used")
            .with_reason("the server does not start without it (docs/XDP.md)")
            .with_verdict(Verdict::Change),
        Ok(queues) => Check::new(
            SETTING,
            Some(format!("{} queues", format_count(*queues))),
            format!("{} queues", format_count(workload.shards)),
        )
        .with_reason("each queue belongs to one shard, and a shard without a queue gets no connections over AF_XDP")
        .change_unless(
            *queues >= workload.shards,
            Verdict::Advice,
            [format!("ethtool -L {} combined {}", xdp.interface, workload.shards)],
        ),
    })
}
