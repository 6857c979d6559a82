//! Queues requests to a home (the part of a shard that keeps topics) behind the earlier requests that are in flight to the engine, which writes the log.
//! Facts (publishes, and changes of topics) are admitted and appended to the log. Asks (requests of shards to the home) that change nothing logged only
//! wait for the earlier requests. See [`commit`](crate::commit).

use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::planted::{self, Fault};
use crate::budget::admission::CUT_OFF_S;
use crate::client::asking::home_context;
use crate::commit::queue::Scope;
use crate::home::{Home, ONLY_HOMES_ARE_ASKED};
use crate::mail::message::Publish;
use crate::mail::{Ask, Fact, Outcome, Span, WantedAnswer};
use crate::protocol::front::{Context, Front};
use crate::shard::Shard;
use crate::shard::asks::send_outcome;
use crate::shard::pending_request::{PendingRequest, Request};

impl Shard {
    /// Carries out an ask that changes nothing logged, after the earlier requests that it must not overtake.
    pub(super) fn enqueue_ask(&mut self, from: ShardId, mut ask: Ask, bytes: &[u8]) {
        let scope = match self.commits.is_empty() {
            true => None,
            false => scope_of_ask(&self.front.clients.ctx, self.home.as_ref(), &ask, bytes),
        };
        let Some(scope) = scope.filter(|scope| !self.commits.can_take_effect(*scope)) else {
            return self.carry_out_unlogged(from, ask, bytes);
        };
        let mut own_bytes = Vec::new();
        if let Some(text) = ask.text_mut() {
            *text = Span::append(&mut own_bytes, text.in_bytes(bytes));
        }
        let held_bytes = size_of::<(Ask, Vec<u8>)>() + own_bytes.capacity();
        let waiting = PendingRequest {
            from,
            weight: 0,
            request: Request::Ask(Box::new((ask, own_bytes))),
        };
        self.commits
            .push(scope, waiting, held_bytes, self.front.clients.ctx.now);
    }

    /// Admits a fact, and applies it at once or when the engine has committed it. Returns the credit that the sender gets back when the fact is applied; 0
    /// if it is applied already.
    pub(super) fn admit(&mut self, from: ShardId, fact: &Fact<'_>, answer: WantedAnswer) -> usize {
        let (ctx, name) = (&self.front.clients.ctx, fact.topic().name);
        let appends = ctx.world.appends();
        let (partition_index, is_logged) = match appends {
            true => (
                partition_index_of_name(ctx, name),
                ctx.world.rules.is_durable(name),
            ),
            false => (0, true),
        };
        if !is_logged && let Some(mut node) = self.node_context() {
            node.renew_offsets(partition_index);
        }
        let home = self.home.as_mut().expect(ONLY_HOMES_ARE_ASKED);
        let is_outdated = is_outdated(&self.front);
        let Front { clients, subs, .. } = &mut self.front;
        let mut context = home_context(subs, &clients.ctx);
        let (now, sequence) = (context.now, home.logs.sequence(partition_index));
        let is_of_session = match fact {
            Fact::Publish(message) => message
                .dedup
                .is_some_and(|it| it.publisher.is_qos2_publisher()),
            Fact::Topic { .. } => false,
        };
        let admitted = match is_logged {
            // Another node may have taken the session meanwhile, so this node must not write for it.
            _ if is_of_session && is_outdated => Err(Outcome::Unknown),
            true if !appends => Err(home.admit_and_apply(fact, &mut context)),
            false
                if self
                    .commits
                    .can_unlogged_take_effect(partition_index, sequence) =>
            {
                Err(match home.admit(fact, &context) {
                    Ok(_) => home.apply_admitted(fact, None, &mut context),
                    Err(outcome) => outcome,
                })
            }
            _ => home.reserve(fact, &context),
        };
        let reserved = match admitted {
            Ok(reserved) => reserved,
            Err(outcome) => {
                send_outcome(clients, &mut subs.lanes, from, answer, outcome);
                return 0;
            }
        };
        let (weight, is_exactly_once) = match fact {
            Fact::Publish(message) => {
                let weight = context.lanes.weight(1, message_bytes(message));
                // In a cluster a QoS 2 message without a session key is one of a session that ends with its connection, so no second copy follows.
                let may_repeat = message.headers.qos > 1 && !clients.ctx.world.is_replicated();
                (weight, may_repeat || is_of_session)
            }
            Fact::Topic { .. } => (0, false),
        };
        let unlogged = (!is_logged).then(|| {
            let mut record = Vec::new();
            fact.encode(&mut record, 0);
            record.into_boxed_slice()
        });
        let unlogged_bytes = unlogged.as_ref().map(|it| it.len());
        let waiting = PendingRequest {
            from,
            weight,
            request: Request::Fact {
                unlogged,
                answer,
                client: fact.topic().client,
                reserved,
                is_exactly_once,
            },
        };
        let encode = |out: &mut Vec<u8>, offset_delta| fact.encode(out, offset_delta);
        let len = match unlogged_bytes {
            Some(len) => self
                .commits
                .push_unlogged(partition_index, waiting, len, now, sequence),
            None => self
                .commits
                .push_write(partition_index, waiting, now, sequence, encode),
        };
        clients.meter.work.steps.add_bytes(len);
        weight
    }
}

/// Whether the node may have been cut off from the log of the cluster since the ask that is handled now was sent.
pub(super) fn is_outdated(front: &Front) -> bool {
    let (ctx, age_s) = (&front.clients.ctx, front.subs.lanes.ask_age_s());
    ctx.world.is_replicated() && (ctx.is_cut_off() || age_s >= u64::from(CUT_OFF_S))
}

fn partition_index(ctx: &Context, partition: PartitionId) -> usize {
    ctx.world.placement().index_at_home(partition)
}

fn partition_index_of_name(ctx: &Context, name: &[u8]) -> usize {
    partition_index(ctx, ctx.partition_of(name))
}

/// The queue for a subscription to a topic or a filter.
fn scope_of_filter(ctx: &Context, filter: &[u8]) -> Scope {
    match topic::has_wildcard(filter) {
        true => Scope::All,
        false => Scope::Partition(partition_index_of_name(ctx, filter)),
    }
}

/// The queue for an ask that changes nothing logged. `None` if the ask need not wait: its subscription has begun already, or it concerns
/// nothing that is logged.
fn scope_of_ask(ctx: &Context, home: Option<&Home>, ask: &Ask, bytes: &[u8]) -> Option<Scope> {
    Some(match ask {
        // A subscription by filter needs the messages of all partitions from now on. If this ask waited for one partition, another partition could apply
        // messages meanwhile without keeping them. So the ask takes effect at once.
        Ask::CountQosSubscription {
            name, begins: true, ..
        } if topic::has_wildcard(name.in_bytes(bytes)) => {
            return None;
        }
        Ask::CountQosSubscription { name, .. } => scope_of_filter(ctx, name.in_bytes(bytes)),
        Ask::JoinGroup { filter, .. } | Ask::ReleaseGroup { filter, .. } => {
            scope_of_filter(ctx, filter)
        }
        Ask::LeaveGroup(leave) => {
            let subscriptions = &home?.subscriptions;
            let (filter, _) = subscriptions.group_filter_and_name(leave.group)?;
            scope_of_filter(ctx, filter)
        }
        Ask::Attach(_, name) | Ask::Topic { name, .. } => {
            Scope::Partition(partition_index_of_name(ctx, name.in_bytes(bytes)))
        }
        Ask::AttachFilters(attach, ..) => {
            let one = attach.partition;
            one.map_or(Scope::All, |one| {
                Scope::Partition(partition_index(ctx, one))
            })
        }
        Ask::LeaveFilter(_) => Scope::All,
        Ask::Fence(_) if !planted::is(Fault::EarlyFence) => Scope::All,
        _ => return None,
    })
}

/// Bytes of a message in a mail.
fn message_bytes(message: &Publish<'_>) -> usize {
    let dedup = message.dedup.map_or(0, |dedup| dedup.key.len());
    let fields = message.headers.fields().into_iter();
    let fields = fields.map(|field| field.len()).sum::<usize>();
    message.name.len() + message.data.len() + fields + dedup
}
