//! The connections of the admin port: their limit, and the timeouts of their requests.
//!
//! When `admin.connections_max` connections are open, the port closes a connection to make room for a new one
//! ([`super::connection_slots`]). If it may close none, the new connection is an *overflow* connection and may send one request: the
//! port answers probes of `/healthz` and `/readyz`, and refuses other requests with the reason. At most [`OVERFLOW_MAX`] overflow
//! connections are open. When one more arrives, the port closes the oldest, so that a flood of overflow connections keeps no client out for long.
//!
//! Deliberately not here: the checks of requests ([`super::request_guard`]), and a timeout for sending an answer, since event streams have
//! no end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::body;
use super::connection_slots::{ConnectionSlots, Slot};
use crate::log::LoggedCount;
use crate::settings::admin::Admin;

/// The maximum size of a request's head, which is held until it is complete.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The maximum number of open overflow connections.
const OVERFLOW_MAX: usize = 16;
/// Pause after a failed accept, for example when the process has no free descriptor.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Counters of the admin port. `refused` and `slow` count from the start of the process.
pub struct PortCounters {
    /// The slots of open connections.
    slots: Arc<ConnectionSlots>,
    /// Overflow connections, and connections that were closed for another.
    refused_connections: LoggedCount,
    /// Connections whose first request, or whose request body, did not arrive in time.
    timed_out_connections: LoggedCount,
}

impl PortCounters {
    pub fn new(admin: &Admin) -> Arc<PortCounters> {
        Arc::new(PortCounters {
            slots: ConnectionSlots::new(admin.connections_max, !admin.token.is_empty()),
            refused_connections: LoggedCount::default(),
            timed_out_connections: LoggedCount::default(),
        })
    }

    /// The count of open connections, without overflow connections.
    pub fn open_connections(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The count of overflow connections, and of connections that were closed for another.
    pub fn refused(&self) -> u64 {
        self.refused_connections.count()
    }

    /// The count of connections whose first request, or whose request body, did not arrive in time.
    pub fn slow(&self) -> u64 {
        self.timed_out_connections.count()
    }
}

/// The server of the admin port.
pub struct AdminPort {
    counters: Arc<PortCounters>,
    head_timeout: Duration,
    body_s: u32,
    routes: Router,
    /// The routes for overflow connections.
    overflow_routes: Router,
    /// The tasks of overflow connections, oldest first.
    overflow_tasks: VecDeque<AbortHandle>,
}

impl AdminPort {
    /// `overflow_routes` answer overflow connections, `routes` all others.
    pub fn new(
        admin: &Admin,
        counters: Arc<PortCounters>,
        routes: Router,
        overflow_routes: Router,
    ) -> AdminPort {
        AdminPort {
            counters,
            head_timeout: Duration::from_secs(u64::from(admin.head_s)),
            body_s: admin.body_s,
            routes,
            overflow_routes,
            overflow_tasks: VecDeque::new(),
        }
    }

    /// Accepts and serves connections. Never returns.
    pub async fn serve(mut self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.serve_accepted(stream, peer.ip()),
                Err(error) => {
                    tracing::debug!(%error, "the admin port could not take a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    fn serve_accepted(&mut self, stream: TcpStream, peer: IpAddr) {
        let _ = stream.set_nodelay(true); // a failure only makes answers slower
        let slots = &self.counters.slots;
        let Some((slot, replaces_other)) = slots.take(peer) else {
            if let Some(refused) = self.counters.refused_connections.add() {
                let reason = full_text(slots.max());
                tracing::warn!(refused, "the admin port is full: {reason}");
            }
            return self.answer_overflow(stream);
        };
        if replaces_other && let Some(refused) = self.counters.refused_connections.add() {
            let max = slots.max();
            tracing::warn!(
                refused,
                "the admin port is full: {max} connections are open, as many as admin.connections_max allows; a new one replaces one that has not sent admin.token, or without a token one of the address that has most"
            );
        }
        let number = slot.number();
        let task = tokio::spawn(self.serve_connection(stream, &self.routes, Some(slot)));
        slots.set_task(number, task.abort_handle());
    }

    /// Answers one request of an overflow connection.
    fn answer_overflow(&mut self, stream: TcpStream) {
        let answered = tokio::spawn(self.serve_connection(stream, &self.overflow_routes, None));
        self.overflow_tasks.push_back(answered.abort_handle());
        if self.overflow_tasks.len() > OVERFLOW_MAX {
            let oldest = self.overflow_tasks.pop_front();
            oldest.iter().for_each(AbortHandle::abort); // does nothing if the task has ended
        }
    }

    /// Serves a connection until it ends. An overflow connection has no slot, and gets one answer.
    fn serve_connection(
        &self,
        stream: TcpStream,
        routes: &Router,
        slot: Option<Slot>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (counters, routes) = (self.counters.clone(), routes.clone());
        let body_s = self.body_s;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .keep_alive(slot.is_some());
        async move {
            let has_request = AtomicBool::new(false);
            let service = service_fn(|mut request: Request<Incoming>| {
                has_request.store(true, Relaxed);
                if let Some(slot) = &slot {
                    request.extensions_mut().insert(slot.authenticated.clone());
                }
                let routes = TowerToHyperService::new(routes.clone());
                let (request, timed_out) =
                    body::with_deadline(request, Duration::from_secs(body_s.into()));
                let answered = hyper::service::Service::call(&routes, request);
                let counters = &counters;
                async move {
                    let answer = answered.await?;
                    match timed_out.load(Relaxed) {
                        false => Ok(answer),
                        true => Ok::<_, Infallible>(answer_slow_body(counters, body_s)),
                    }
                }
            });
            let served = http.serve_connection(TokioIo::new(stream), service).await;
            // Only a late first request counts as slow. After the first request the same timeout ends idle connections, which is normal.
            if served.is_err_and(|error| error.is_timeout())
                && !has_request.load(Relaxed)
                && let Some(slow) = counters.timed_out_connections.add()
            {
                tracing::warn!(
                    slow,
                    "the admin port ended a connection that sent no request in time; raise admin.head_s if this was a real client"
                );
            }
        }
    }
}

fn full_text(max: u32) -> String {
    format!(
        "{max} connections are open, as many as admin.connections_max allows; close some (the console's tabs, event streams), or raise it"
    )
}

/// The answer to a request whose body did not arrive in time. The connection ends with it.
fn answer_slow_body(counters: &PortCounters, body_s: u32) -> Response {
    if let Some(slow) = counters.timed_out_connections.add() {
        tracing::warn!(
            slow,
            "the admin port ended a connection whose request body did not arrive in time; raise admin.body_s if this was a real client"
        );
    }
    let reason =
        format!("the body did not arrive within {body_s} s; send it faster, or raise admin.body_s");
    let body = axum::Json(serde_json::json!({ "error": reason }));
    let close = [(header::CONNECTION, "close")];
    (StatusCode::REQUEST_TIMEOUT, close, body).into_response()
}

/// The answer to a request of an overflow connection.
pub fn refuse_overflow(
    admin: &Admin,
) -> impl Fn() -> std::future::Ready<Response> + Clone + Send + use<> {
    let max = admin.connections_max;
    move || {
        let body = axum::Json(serde_json::json!({ "error": full_text(max) }));
        let status = StatusCode::SERVICE_UNAVAILABLE;
        std::future::ready((status, [(header::RETRY_AFTER, "5")], body).into_response())
    }
}

/// The probes of load balancers, which the admin port answers in every state. `ready` answers `/readyz`.
pub fn probe_routes<S: Clone + Send + Sync + 'static>(ready: MethodRouter<S>) -> Router<S> {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", ready)
}
