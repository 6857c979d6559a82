//! The connections of the admin port: their limit, and the timeouts of their requests.
//!
//! When all of `admin.connections_max` are taken, an unauthenticated connection is closed for a new one ([`super::places`]). If all are
//! authenticated, a new connection is still accepted for one request: probes of `/healthz` and `/readyz` are answered, other
//! requests are refused with the reason. There are at most [`SPARE`] such connections, and the oldest is closed for the next one, so that a
//! flood of them keeps no client out for long.
//!
//! Deliberately not here: the checks of requests ([`super::gate`]), and a timeout of answers, since event streams have no end.

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
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::body;
use super::places::{Place, Places};
use crate::log::LoggedCount;
use crate::settings::admin::Admin;

/// Most connections past the limit at once.
const SPARE: usize = 16;
/// Pause after a failed accept, as when the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The port's counters since the start, and its places for connections.
pub struct Counts {
    places: Arc<Places>,
    /// Connections past the limit, and those that were closed for another.
    refused: LoggedCount,
    /// Connections whose first request, or whose request body, did not arrive in time.
    slow: LoggedCount,
}

impl Counts {
    pub fn new(admin: &Admin) -> Arc<Counts> {
        Arc::new(Counts {
            places: Places::new(admin.connections_max),
            refused: LoggedCount::default(),
            slow: LoggedCount::default(),
        })
    }

    /// Open connections, without those past the limit.
    pub fn open(&self) -> u64 {
        self.places.len() as u64
    }

    /// Count of connections past the limit, and of those that were closed for another.
    pub fn refused(&self) -> u64 {
        self.refused.count()
    }

    /// Count of connections whose first request, or whose request body, did not arrive in time.
    pub fn slow(&self) -> u64 {
        self.slow.count()
    }
}

/// The server of the admin port.
pub struct Port {
    counts: Arc<Counts>,
    head_timeout: Duration,
    body_s: u32,
    routes: Router,
    /// For connections past the limit.
    spare_routes: Router,
    spare: VecDeque<AbortHandle>,
}

impl Port {
    /// Answers with `routes`, and past the limit with `spare_routes`.
    pub fn new(admin: &Admin, counts: Arc<Counts>, routes: Router, spare_routes: Router) -> Port {
        Port {
            counts,
            head_timeout: Duration::from_secs(u64::from(admin.head_s)),
            body_s: admin.body_s,
            routes,
            spare_routes,
            spare: VecDeque::new(),
        }
    }

    /// Accepts and serves connections. Never returns.
    pub async fn serve(mut self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.take(stream, peer.ip()),
                Err(error) => {
                    tracing::debug!(%error, "the admin port could not take a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn take(&mut self, stream: TcpStream, peer: IpAddr) {
        let _ = stream.set_nodelay(true); // a failure only makes answers slower
        let places = &self.counts.places;
        let Some((place, for_a_stranger)) = places.take(peer) else {
            if let Some(refused) = self.counts.refused.add() {
                let why = full(places.max());
                tracing::warn!(refused, "the admin port is full: {why}");
            }
            return self.refuse(stream);
        };
        if for_a_stranger && let Some(refused) = self.counts.refused.add() {
            let max = places.max();
            tracing::warn!(
                refused,
                "the admin port is full: {max} connections are open, as many as admin.connections_max allows; new ones take the places of those that have not shown admin.token, or sent no request"
            );
        }
        let number = place.number();
        let task = tokio::spawn(self.answer(stream, &self.routes, Some(place)));
        places.hold(number, task.abort_handle());
    }

    /// Answers one request of a connection past the limit.
    fn refuse(&mut self, stream: TcpStream) {
        let answered = tokio::spawn(self.answer(stream, &self.spare_routes, None));
        self.spare.push_back(answered.abort_handle());
        if self.spare.len() > SPARE {
            let oldest = self.spare.pop_front();
            oldest.iter().for_each(AbortHandle::abort); // does nothing if it has ended
        }
    }

    /// Spawns a task that serves a connection. Without a place it answers one request.
    fn answer(
        &self,
        stream: TcpStream,
        routes: &Router,
        place: Option<Place>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (counts, routes) = (self.counts.clone(), routes.clone());
        let body_s = self.body_s;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .keep_alive(place.is_some());
        async move {
            let asked = AtomicBool::new(false);
            let service = service_fn(|mut request: Request<Incoming>| {
                asked.store(true, Relaxed);
                if let Some(place) = &place {
                    request.extensions_mut().insert(place.admitted.clone());
                }
                let routes = TowerToHyperService::new(routes.clone());
                let (request, late) = body::timed(request, Duration::from_secs(body_s.into()));
                let answered = hyper::service::Service::call(&routes, request);
                let counts = &counts;
                async move {
                    let answer = answered.await?;
                    match late.load(Relaxed) {
                        false => Ok(answer),
                        true => Ok::<_, Infallible>(slow_body(counts, body_s)),
                    }
                }
            });
            let served = http.serve_connection(TokioIo::new(stream), service).await;
            // Only the first request counts as slow: later, an idle connection times out the same way.
            if served.is_err_and(|error| error.is_timeout())
                && !asked.load(Relaxed)
                && let Some(slow) = counts.slow.add()
            {
                tracing::warn!(
                    slow,
                    "the admin port ended a connection that did not ask in time; raise admin.head_s if that was no probe"
                );
            }
        }
    }
}

fn full(max: u32) -> String {
    format!(
        "{max} connections are open, as many as admin.connections_max allows; close some (the console's tabs, event streams), or raise it"
    )
}

/// The answer to a request whose body did not arrive in time. The connection ends with it.
fn slow_body(counts: &Counts, body_s: u32) -> Response {
    if let Some(slow) = counts.slow.add() {
        tracing::warn!(
            slow,
            "the admin port ended a connection whose request's body did not come in time; raise admin.body_s if that was no probe"
        );
    }
    let why =
        format!("the body did not come within {body_s} s; send it faster, or raise admin.body_s");
    let body = axum::Json(serde_json::json!({ "error": why }));
    let close = [(header::CONNECTION, "close")];
    (StatusCode::REQUEST_TIMEOUT, close, body).into_response()
}

/// The answer to each request past the limit.
pub fn refusal(admin: &Admin) -> impl Fn() -> std::future::Ready<Response> + Clone + Send + use<> {
    let max = admin.connections_max;
    move || {
        let body = axum::Json(serde_json::json!({ "error": full(max) }));
        let status = StatusCode::SERVICE_UNAVAILABLE;
        std::future::ready((status, [(header::RETRY_AFTER, "5")], body).into_response())
    }
}
