//! Handlers that list connections, show one, and end connections.

#![allow(unused_qualifications)] // what utoipa writes for `params`

use std::net::IpAddr;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use crore_broker::orders::{self, ConnectionOrder, Selection};
use crore_broker::{ConnId, Control, ShardId, Transport};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, ApiError, ErrorBody, PageRequest, text};
use super::subscription::{Subscription, subscription};
use super::topics::filter;
use crate::control::state::AdminState;
use crate::lifecycle::shards::{ShardTimeout, Shards};

/// A connection.
#[derive(Serialize, ToSchema)]
pub struct Connection {
    /// Identifies the connection until it ends.
    id: String,
    /// The shard of the connection.
    shard: ShardId,
    /// http, longpoll, sse, websocket, mqtt, mqtt_websocket, centrifugo, http2 or closing.
    transport: &'static str,
    /// The id of the connection of HTTP/2 of which this one is a stream; null for others.
    http2: Option<String>,
    /// request (between or within requests), waiting (for an answer), open (it subscribes) or closing.
    state: &'static str,
    /// The client's address: the one that a proxy of http.trusted_proxies named for the last request or for the connection, otherwise that of the peer.
    address: Option<String>,
    /// The user, if it is known.
    user: Option<String>,
    /// The MQTT client id, once the connection has its session.
    client_id: Option<String>,
    /// The topics to which it subscribes; in a list, the first 16.
    topics: Vec<String>,
    /// The number of topics.
    topic_count: u32,
    /// The filters to which it subscribes; in a list, the first 16.
    filters: Vec<String>,
    /// Bytes that wait for its socket.
    outbox_bytes: u64,
    /// Whether it was too slow and continues from the log.
    behind: bool,
    /// Seconds since something was last sent to it.
    silent_s: u32,
    /// The Unix second in which the server accepted it.
    connected_unix_s: u32,
    /// Whether this server encrypts it with TLS. Behind a proxy that ends TLS, it does not.
    tls: bool,
    /// The state of an MQTT connection; null for other protocols.
    mqtt: Option<Mqtt>,
}

/// The state of an MQTT connection.
#[derive(Serialize, ToSchema)]
pub struct Mqtt {
    /// The version of the protocol: 5.0 or 3.1.1.
    version: &'static str,
    /// The keep alive in seconds; 0 if the client has set none.
    keep_alive_s: u16,
    /// The number of QoS 1 and 2 messages that the client has not acknowledged.
    in_flight: u64,
    /// The maximum of `in_flight` that the client allows (its Receive Maximum).
    in_flight_max: u16,
    /// The number of messages that wait to be sent until earlier ones are acknowledged.
    waiting: u64,
    /// Seconds that the session outlives the connection; 4294967295: for ever.
    session_expiry_s: u32,
    /// Its subscriptions; in a list, the first 16.
    subscriptions: Vec<Subscription>,
}

/// A page of connections.
#[derive(Serialize, ToSchema)]
pub struct ConnectionPage {
    connections: Vec<Connection>,
    /// The `cursor` of the next page. A page before the last one may be short or empty.
    next: Option<String>,
}

/// Selects the connections that meet all given conditions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ConnectionsQuery {
    /// With this transport: http, longpoll, sse, websocket, mqtt, mqtt_websocket, centrifugo, http2 or closing.
    transport: Option<String>,
    /// That subscribes to a topic or filter which this filter covers.
    filter: Option<String>,
    /// Of this user.
    user: Option<String>,
    /// From this address.
    #[param(value_type = Option<String>)]
    address: Option<IpAddr>,
    /// With an outbox: bytes wait for the socket.
    slow: Option<bool>,
    /// The number of connections of a page, 1 to 1000. 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    cursor: Option<String>,
}

/// Selects the connections to end: those that meet all given conditions. At least one condition must be given.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DisconnectRequest {
    /// With this transport.
    transport: Option<String>,
    /// That subscribes to a topic or filter which this filter covers.
    filter: Option<String>,
    /// Of this user.
    user: Option<String>,
    /// From this address.
    #[schema(value_type = Option<String>)]
    address: Option<IpAddr>,
    /// With an outbox: bytes wait for the socket.
    slow: Option<bool>,
}

/// The number of ended connections.
#[derive(Serialize, ToSchema)]
pub struct DisconnectedCount {
    disconnected: u64,
}

fn selection(
    transport: Option<&str>,
    user: Option<String>,
    address: Option<IpAddr>,
    filter_text: Option<&str>,
    slow: Option<bool>,
) -> Result<Selection, ApiError> {
    let parse_transport = |name: &str| {
        let transports = Transport::ALL;
        let names: Vec<_> = transports
            .iter()
            .map(|transport| transport.name())
            .collect();
        let found = transports
            .into_iter()
            .find(|transport| transport.name() == name);
        found.ok_or_else(|| {
            ApiError::bad(format!(
                "there is no transport {name:?}; write one of {}",
                names.join(", ")
            ))
        })
    };
    Ok(Selection {
        transport: transport.map(parse_transport).transpose()?,
        user: user.map(String::into_boxed_str),
        address: address.map(|it| it.to_canonical()),
        filter: filter_text
            .map(|filter_text| filter(Some(filter_text)))
            .transpose()?,
        slow: slow.unwrap_or_default(),
        ..Selection::default()
    })
}

fn describe(shard: ShardId, connection: orders::Connection) -> Connection {
    let texts = |list: Vec<Box<[u8]>>| list.iter().map(|name| text(name)).collect();
    let state = match connection.transport {
        Transport::Closing => "closing",
        Transport::Http if connection.request_in_flight => "waiting",
        Transport::Http => "request",
        _ => "open",
    };
    let format_id = |ConnId { slot, generation }| format!("{shard}-{slot}-{generation}");
    Connection {
        id: format_id(connection.id),
        shard,
        transport: connection.transport.name(),
        http2: connection.link.map(format_id),
        state,
        address: connection.address.map(|address| address.to_string()),
        user: Some(connection.user.into_string()).filter(|user| !user.is_empty()),
        client_id: None,
        topics: texts(connection.topics),
        topic_count: connection.topic_count,
        filters: texts(connection.filters),
        outbox_bytes: connection.outbox_bytes as u64,
        behind: connection.behind,
        silent_s: connection.silent_s,
        connected_unix_s: connection.connected_unix_s,
        tls: connection.is_secure,
        mqtt: connection.mqtt.map(|it| Mqtt {
            version: if it.is_v5 { "5.0" } else { "3.1.1" },
            keep_alive_s: it.keep_alive_s,
            in_flight: it.in_flight as u64,
            in_flight_max: it.receive_max,
            waiting: it.waiting as u64,
            session_expiry_s: it.expiry_s,
            subscriptions: it.subscriptions.into_iter().map(subscription).collect(),
        }),
    }
}

/// Converts connections for the answer. A connection does not store its MQTT client id, so the homes of the sessions are asked for the
/// client ids, with one question for each home.
async fn to_connections(
    state: &AdminState,
    found: Vec<(ShardId, orders::Connection)>,
) -> Result<Vec<Connection>, ApiError> {
    let sessions: Vec<_> = found.iter().map(|(_, it)| it.session).collect();
    let describe = |(shard, it)| describe(shard, it);
    let mut all: Vec<_> = found.into_iter().map(describe).collect();
    for home in 0..state.shards.count() {
        let of_home = |(at, session): (usize, &Option<_>)| match session {
            Some((of, id)) if *of == home => Some((at, *id)),
            _ => None,
        };
        let (places, ids): (Vec<_>, Vec<_>) =
            sessions.iter().enumerate().filter_map(of_home).unzip();
        if ids.is_empty() {
            continue;
        }
        let names: Vec<Option<Box<[u8]>>> = state.shards.ask(home, Control::ClientIds(ids)).await?;
        for (at, name) in places.into_iter().zip(names) {
            all[at].client_id = name.map(|name| text(&name));
        }
    }
    Ok(all)
}

/// Parses the id of a connection: shard, slot and generation. The connection may have ended.
fn parse_id(state: &AdminState, id: &str) -> Result<(ShardId, ConnId), ApiError> {
    let mut parts = id.splitn(3, '-');
    let mut part = || parts.next()?.parse::<u32>().ok();
    let found = (|| {
        let (shard, slot, generation) = (part()?, part()?, part()?);
        let generation = u16::try_from(generation).ok()?;
        Some((ShardId::try_from(shard).ok()?, ConnId { slot, generation }))
    })();
    let found = found.filter(|(shard, _)| *shard < state.shards.count());
    found.ok_or_else(|| ApiError::missing("connection"))
}

/// Connections
#[utoipa::path(
    get,
    path = "/api/v1/connections",
    tag = "connections",
    params(ConnectionsQuery),
    responses(
        (status = 200, body = ConnectionPage),
        (status = 400, body = ErrorBody, description = "An invalid transport, filter, limit or cursor"),
    )
)]
pub async fn list(
    State(state): State<AdminState>,
    query: Result<Query<ConnectionsQuery>, QueryRejection>,
) -> Answer<ConnectionPage> {
    let query = query?.0;
    let selection = selection(
        query.transport.as_deref(),
        query.user,
        query.address,
        query.filter.as_deref(),
        query.slow,
    )?;
    let page = PageRequest::new(query.limit, query.cursor.as_deref())?;
    let order = |from, connections_max| Control::Connections {
        which: selection.clone(),
        from,
        connections_max,
    };
    let (found, next) = page.page(&state, state.shards.count(), order).await?;
    let connections = to_connections(&state, found).await?;
    Ok(Json(ConnectionPage { connections, next }))
}

/// A connection
#[utoipa::path(
    get,
    path = "/api/v1/connections/{id}",
    tag = "connections",
    params(("id" = String, Path, description = "As a list gave it")),
    responses((status = 200, body = Connection), (status = 404, body = ErrorBody))
)]
pub async fn inspect(
    State(state): State<AdminState>,
    Path(id): Path<String>,
) -> Answer<Connection> {
    let (shard, id) = parse_id(&state, &id)?;
    let found: Option<Box<_>> = state.shards.ask(shard, Control::Connection(id)).await?;
    let found = found.map(|connection| (shard, *connection));
    let one = to_connections(&state, found.into_iter().collect())
        .await?
        .pop();
    one.map(Json).ok_or_else(|| ApiError::missing("connection"))
}

/// End a connection
///
/// The client gets the reason in its protocol: WebSocket 4403, MQTT 0x98. It may connect again; only a rule of access prevents that.
#[utoipa::path(
    delete,
    path = "/api/v1/connections/{id}",
    tag = "connections",
    params(("id" = String, Path, description = "As a list gave it")),
    responses((status = 200, body = DisconnectedCount), (status = 404, body = ErrorBody))
)]
pub async fn end(
    State(state): State<AdminState>,
    Path(id): Path<String>,
) -> Answer<DisconnectedCount> {
    let (shard, id) = parse_id(&state, &id)?;
    let ended: orders::Ended = state.shards.ask(shard, Control::Disconnect(id)).await?;
    match ended.count {
        0 => Err(ApiError::missing("connection")),
        _ => Ok(Json(DisconnectedCount { disconnected: 1 })),
    }
}

/// End connections by user, address, filter or transport
#[utoipa::path(
    post,
    path = "/api/v1/connections/disconnect",
    tag = "connections",
    request_body = DisconnectRequest,
    responses(
        (status = 200, body = DisconnectedCount),
        (status = 400, body = ErrorBody, description = "The body is invalid, or gives no condition"),
        (status = 415, body = ErrorBody, description = "Not application/json"),
    )
)]
pub async fn end_selected(
    State(state): State<AdminState>,
    request: Result<Json<DisconnectRequest>, JsonRejection>,
) -> Answer<DisconnectedCount> {
    let request = request?.0;
    let selection = selection(
        request.transport.as_deref(),
        request.user,
        request.address,
        request.filter.as_deref(),
        request.slow,
    )?;
    let nothing = selection.transport.is_none()
        && selection.user.is_none()
        && selection.address.is_none()
        && selection.filter.is_none();
    if nothing && !selection.slow {
        let reason = "name whom to disconnect: user, address, filter, transport or slow; POST /api/v1/drain is for everybody";
        return Err(ApiError::bad(reason));
    }
    let disconnected = order_each(&state.shards, &ConnectionOrder::Disconnect, |_| {
        Some(selection.clone())
    });
    Ok(Json(DisconnectedCount {
        disconnected: disconnected.await?,
    }))
}

/// Carries out an order for the connections that `selection_of` selects at each shard (`None`: none at that shard). Returns the number of these connections.
pub async fn order_each(
    shards: &Shards,
    order: &ConnectionOrder,
    selection_of: impl Fn(ShardId) -> Option<Selection>,
) -> Result<u64, ShardTimeout> {
    let mut count = 0;
    for shard in 0..shards.count() {
        let Some(selection) = selection_of(shard) else {
            continue;
        };
        let mut from = Some(0);
        while let Some(row) = from {
            let order = Control::EachConnection {
                order: order.clone(),
                which: selection.clone(),
                from: row,
            };
            let ended: orders::Ended = shards.ask(shard, order).await?;
            count += u64::from(ended.count);
            from = ended.next;
        }
    }
    Ok(count)
}
