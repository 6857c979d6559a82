//! The methods of the API that are about clients, for those of this node, and `info`.

use std::collections::BTreeMap;

use crore_broker::orders::{self, ConnectionOrder, Selection, ServerSide};
use crore_broker::protocol::{centrifugo_client_named, epoch_text};
use crore_broker::{Accounts, ConnId, Control, ShardId, Stats, Transport, World};
use crore_wire::centrifugo::codes::{Disconnect as Code, ErrorCode};
use crore_wire::topic;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::nodes::call_all;
use super::topics::{Place, data_of, topic_of};
use super::{Empty, Failure, read};
use crate::control::api::answer::ApiError;
use crate::control::api::cluster;
use crate::control::api::connections::order_each;
use crate::control::process;
use crate::control::state::AdminState;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// The codes that a Close frame of a connection may have here (RFC 6455 section 7.4.2).
const CODES: std::ops::RangeInclusive<u16> = 3_000..=4_999;
/// The longest reason of a Close frame, in bytes (RFC 6455 section 5.5).
const REASON_BYTES_MAX: usize = 123;

/// The clients that a method is for: those of a user, or one of them.
#[derive(Deserialize)]
struct Who {
    user: Option<String>,
    client: Option<String>,
    session: Option<String>,
    /// gocent has this name for it.
    #[serde(alias = "ClientWhitelist")]
    whitelist: Option<Vec<String>>,
}

/// The parameters of `subscribe`.
#[derive(Deserialize)]
struct Subscribe<'a> {
    #[serde(default)]
    channel: String,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    b64data: Option<String>,
    recover_since: Option<Place>,
    expire_at: Option<i64>,
}

/// The parameters of `unsubscribe`.
#[derive(Deserialize)]
struct Unsubscribe {
    #[serde(default)]
    channel: String,
}

/// The parameters of `disconnect`.
#[derive(Deserialize)]
struct Disconnect {
    /// gocent writes it with a capital letter.
    #[serde(alias = "Disconnect")]
    disconnect: Option<CodeAndReason>,
}

#[derive(Deserialize)]
struct CodeAndReason {
    #[serde(default)]
    code: u32,
    #[serde(default)]
    reason: String,
}

/// The parameters of `refresh`.
#[derive(Deserialize)]
struct Refresh {
    expired: Option<bool>,
    expire_at: Option<i64>,
}

/// The number of different users. All connections without a user's name are one.
#[derive(Serialize, Deserialize)]
pub struct Users {
    users: u64,
}

#[derive(Serialize)]
pub struct Info {
    nodes: Vec<Node>,
}

/// A node.
#[derive(Serialize)]
struct Node {
    uid: String,
    name: String,
    version: &'static str,
    num_clients: u64,
    /// Absent if the node has not told it in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    num_users: Option<u64>,
    num_subs: u64,
    num_channels: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    uptime: Option<u64>,
}

/// Carries out an order for the clients that the parameters name.
async fn order(
    shards: &Shards,
    world: &World,
    params: &str,
    order: ConnectionOrder,
) -> Result<Empty, Failure> {
    let who: Who = read(params)?;
    let user = who.user.filter(|user| !user.is_empty());
    if who.session.is_some_and(|session| !session.is_empty()) {
        return Err(Failure::not_built("session"));
    }
    let client = who.client.filter(|client| !client.is_empty());
    let only = client
        .as_deref()
        .map(|id| centrifugo_client_named(world, id));
    if user.is_none() && only.is_none() {
        return Err(Failure::bad("name a user or a client"));
    }
    let except = who.whitelist.iter().flatten();
    let except: Vec<_> = except
        .filter_map(|id| centrifugo_client_named(world, id))
        .collect();
    let at = |shard: ShardId, (of, conn): &(ShardId, ConnId)| (*of == shard).then_some(*conn);
    let which = |shard| {
        let only = match &only {
            None => None,
            Some(named) => Some(named.as_ref().and_then(|named| at(shard, named))?),
        };
        Some(Selection {
            transport: Some(Transport::Centrifugo),
            user: user.as_deref().map(Box::from),
            only,
            except: except.iter().filter_map(|it| at(shard, it)).collect(),
            ..Selection::default()
        })
    };
    let ended = order_each(shards, &order, which).await;
    ended.map_err(ApiError::from)?;
    Ok(Empty {})
}

/// Carries out one of these methods for the clients of this node.
pub async fn call(
    shards: &Shards,
    lifecycle: &Lifecycle,
    method: &str,
    params: &str,
) -> Result<Empty, Failure> {
    let world = lifecycle.world();
    let wanted = match method {
        "subscribe" => subscribe(&world, params)?,
        "unsubscribe" => {
            let channel = read::<Unsubscribe>(params)?.channel;
            ConnectionOrder::Unsubscribe(topic_of(&world, &channel)?.as_bytes().into())
        }
        "disconnect" => disconnect(params)?,
        "refresh" => refresh(params)?,
        // A node of a later version has passed it on.
        _ => return Err(Failure::new(ErrorCode::METHOD_NOT_FOUND, "")),
    };
    order(shards, &world, params, wanted).await
}

fn subscribe(world: &World, params: &str) -> Result<ConnectionOrder, Failure> {
    let asked: Subscribe<'_> = read(params)?;
    let topic = topic_of(world, &asked.channel)?;
    let name = topic.as_bytes();
    topic::check_name(name, world.settings.limits.topic_bytes)
        .map_err(|error| Failure::bad(format!("the channel {error}")))?;
    Ok(ConnectionOrder::Subscribe(Box::new(ServerSide {
        name: name.into(),
        since: asked.recover_since.map(|place| place.position()),
        data: data_of(asked.data, asked.b64data.as_deref())?.into(),
        until_unix_s: unix_s_of(asked.expire_at)?,
    })))
}

/// The Unix second of an `expire_at`; 0 is none.
fn unix_s_of(expire_at: Option<i64>) -> Result<u32, Failure> {
    match expire_at {
        None | Some(0) => Ok(u32::MAX),
        Some(at) => u32::try_from(at).map_err(|_| Failure::bad("expire_at is no Unix second")),
    }
}

fn disconnect(params: &str) -> Result<ConnectionOrder, Failure> {
    Ok(match read::<Disconnect>(params)?.disconnect {
        None => ConnectionOrder::Disconnect,
        Some(CodeAndReason { code, reason }) => {
            let code = u16::try_from(code).ok().filter(|code| CODES.contains(code));
            let code = code.ok_or_else(|| Failure::bad("a code is from 3000 to 4999"))?;
            if reason.len() > REASON_BYTES_MAX {
                let words = format!("a reason has at most {REASON_BYTES_MAX} bytes");
                return Err(Failure::bad(words));
            }
            ConnectionOrder::DisconnectAs(code, reason.into())
        }
    })
}

fn refresh(params: &str) -> Result<ConnectionOrder, Failure> {
    let asked: Refresh = read(params)?;
    Ok(match (asked.expired, asked.expire_at) {
        (Some(true), _) => {
            let Code { code, text, .. } = Code::EXPIRED;
            ConnectionOrder::DisconnectAs(code as u16, text.into())
        }
        (_, at) => ConnectionOrder::Refresh(unix_s_of(at)?),
    })
}

/// Counts the different users of this node's connections.
pub async fn users(shards: &Shards) -> Result<Users, Failure> {
    let mut users = Vec::new();
    for shard in 0..shards.count() {
        let mut from = Some(0);
        while let Some(row) = from {
            let page: orders::Page<u64> = shards
                .ask(shard, Control::Users(row))
                .await
                .map_err(ApiError::from)?;
            from = page.next;
            users.extend(page.found);
        }
    }
    users.sort_unstable();
    users.dedup();
    Ok(Users {
        users: users.len() as u64,
    })
}

/// The nodes of the cluster, as this node knows them.
pub async fn info(state: &AdminState) -> Result<Info, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let users = call_all::<Users>(state, "users", "{}").await?;
    let own_users = users.own.users;
    let users: BTreeMap<String, u64> = users
        .others
        .into_iter()
        .map(|(writer, it)| (writer, it.users))
        .collect();
    let nodes = match state.peer_nodes.nodes_in_log().await {
        Some(in_log) => cluster::nodes(&in_log, &mut state.peer_nodes.reports())
            .into_iter()
            .map(|node| Node {
                num_subs: node.told.as_ref().map_or(0, |told| told.subscriptions),
                num_channels: node.told.as_ref().map_or(0, |told| told.topics),
                version,
                num_clients: node.clients,
                num_users: match node.this {
                    true => Some(own_users),
                    false => users.get(&node.writer).copied(),
                },
                uptime: None,
                uid: node.writer,
                name: node.name,
            })
            .collect(),
        None => {
            let shards = state.shards.accounts().await.map_err(ApiError::from)?;
            let sum = |of: fn(&(Stats, Accounts)) -> u64| shards.iter().map(|it| of(it)).sum();
            vec![Node {
                uid: epoch_text(state.lifecycle.world().epoch),
                name: process::host(),
                version,
                num_clients: sum(|(_, accounts)| u64::from(accounts.connections)),
                num_users: Some(own_users),
                num_subs: sum(|(stats, _)| stats.attaches.wrapping_sub(stats.detaches)),
                num_channels: sum(|(_, accounts)| u64::from(accounts.home_topics)),
                uptime: Some(state.uptime().as_secs()),
            }]
        }
    };
    Ok(Info { nodes })
}
