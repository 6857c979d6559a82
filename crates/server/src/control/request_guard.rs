//! The checks that every request to the admin port must pass before any handler.
//!
//! * `Host` (or the host in the request's target) must be the admin port's address, a loopback name with any port (a tunnel has another
//!   port), or one of `admin.hosts`; else 403. This stops DNS rebinding: a request of an attacker's page has the attacker's name as `Host`.
//!   If the port listens on all addresses (`0.0.0.0`, `[::]`), any IP address is accepted, since only names can be rebound. The two probes
//!   of a load balancer accept any `Host`: their answers tell a page nothing.
//! * If the request has an `Origin`, the host in it must be the admin port's own or one of `admin.hosts`; else 403, so that no foreign page
//!   can send commands. If the `Host` is a loopback name, or an IP address at a port that listens on all addresses, an `Origin` with the
//!   same host is accepted too. Several `Origin` fields, or several `Host` fields, are 400.
//! * Without `Origin`, a request that a browser sends for a page of another origin (`Sec-Fetch-Site`) is 403, since the page might read or
//!   embed the answer. Following a link to the console is allowed.
//! * If `admin.token` is set, `Authorization: Bearer` must contain that token; else 401, with different texts for a wrong token and a
//!   missing one. The console's files, the API's description and the two probes need no token. Neither does Pusher's server API (`/apps/`), whose
//!   handlers check a signature. The comparison takes constant time.
//! * Centrifugo's server API (`/api` and the paths directly below it) also accepts the key of `admin.api_key`, and needs it if that is set without a
//!   token. The key opens nothing else.
//!
//! Cookies are ignored, and no answer permits another origin (CORS). Refused requests are counted, and logged at a limited rate by reason.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use crore_wire::http::origin::{is_cross_origin, is_listed_host, is_loopback_host, same_origin};
use subtle::ConstantTimeEq as _;

use super::connection_slots::AuthenticatedFlag;
use crate::log::LoggedCount;
use crate::settings::admin::Admin;

/// Probes of load balancers, which are answered for any `Host`.
const PROBES: &[&str] = &["/healthz", "/readyz"];
/// Paths that need no token, since their answers are not secret.
const PUBLIC_PATHS: &[&str] = &["/healthz", "/readyz", "/api/v1/openapi.json"];
/// Prefixes of paths that need a token, except those in [`PUBLIC_PATHS`]. All other paths are files of the console.
const TOKEN_PREFIXES: &[&str] = &["/api/", "/metrics"];
/// The field in which a backend sends the key of Centrifugo's server API.
const KEY_FIELD: &str = "x-api-key";

/// The settings of the checks, and the counts of refused requests.
pub struct RequestGuard {
    hosts: Vec<String>,
    /// The port listens on all addresses of the host, so each of them is a valid `Host`.
    listens_on_all: bool,
    token: Option<String>,
    /// The key of Centrifugo's server API.
    key: Option<String>,
    /// Counts of refused requests, indexed by [`Refusal`].
    refused: [LoggedCount; 8],
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Host,
    Origin,
    Origins,
    Site,
    NoToken,
    Token,
    NoKey,
    Key,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Refusal::Host | Refusal::Origin | Refusal::Site => StatusCode::FORBIDDEN,
            Refusal::Origins => StatusCode::BAD_REQUEST,
            Refusal::NoToken | Refusal::Token | Refusal::NoKey | Refusal::Key => {
                StatusCode::UNAUTHORIZED
            }
        }
    }

    /// The reason for the client, with the remedy.
    fn reason(self) -> &'static str {
        match self {
            Refusal::Host => {
                "the Host is not the admin port's; ask it by its address or as localhost, or name the host in admin.hosts"
            }
            Refusal::Origin => {
                "pages of another origin may not ask here; the console's own name may be listed in admin.hosts"
            }
            Refusal::Origins => "several Origin fields, or several Host fields; send one of each",
            Refusal::Site => {
                "a page of another origin asks (Sec-Fetch-Site); open the address in a tab of its own, or ask with a program"
            }
            Refusal::NoToken => {
                "this port wants a token; send Authorization: Bearer with that of admin.token"
            }
            Refusal::Token => "the token is not that of admin.token",
            Refusal::NoKey => "this path wants a key; send X-API-Key with that of admin.api_key",
            Refusal::Key => "the key is not that of admin.api_key",
        }
    }
}

impl RequestGuard {
    /// The checks of an admin port at `address`, with this key of Centrifugo's server API.
    pub fn new(admin: &Admin, key: Option<String>, address: SocketAddr) -> Self {
        let mut hosts = vec![address.to_string()];
        let listens_on_all = address.ip().is_unspecified();
        hosts.extend(admin.hosts.iter().cloned());
        let token = Some(admin.token.clone()).filter(|token| !token.is_empty());
        RequestGuard {
            hosts,
            listens_on_all,
            token,
            key,
            refused: Default::default(),
        }
    }

    /// The count of refused requests.
    pub fn refused(&self) -> u64 {
        self.refused.iter().map(LoggedCount::count).sum()
    }

    fn log_refusal(&self, refusal: Refusal) {
        if let Some(refused) = self.refused[refusal as usize].add() {
            let reason = refusal.reason();
            tracing::warn!(refused, "the admin port refused a request: {reason}");
        }
    }

    /// Whether `host` is the port's address or one of `admin.hosts`.
    fn is_own_host(&self, host: &str) -> bool {
        is_listed_host(&self.hosts, host.as_bytes())
    }

    /// Whether `host` cannot be rebound: a loopback name, or any IP address if the port listens on all addresses.
    fn cannot_be_rebound(&self, host: &str) -> bool {
        let is_address = host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_address = is_address || bare.is_some_and(|it| it.parse::<Ipv6Addr>().is_ok());
        is_loopback_host(host.as_bytes()) || self.listens_on_all && is_address
    }

    /// Whether an accepted request for this path shows that its client is trusted: the path needs the token, or no token is set and the
    /// request is not a load balancer's probe.
    fn authenticates(&self, path: &str) -> bool {
        match self.token {
            Some(_) => needs_token(path),
            None => !PROBES.contains(&path),
        }
    }

    /// Checks a request. Returns the reason to refuse it, if there is one.
    fn check(&self, target: &Uri, headers: &HeaderMap) -> Option<Refusal> {
        let path = target.path();
        let text = |name| Some(headers.get(name)?.to_str().unwrap_or_default());
        let several = |name| headers.get_all(name).iter().nth(1).is_some();
        if several(header::ORIGIN) || several(header::HOST) {
            return Some(Refusal::Origins);
        }
        // RFC 9112 section 3.2.2: a host in the target overrides the `Host` field.
        let of_target = target.authority().map(Authority::as_str);
        let host = of_target.or(text(header::HOST)).unwrap_or_default();
        if !(self.is_own_host(host) || self.cannot_be_rebound(host) || PROBES.contains(&path)) {
            return Some(Refusal::Host);
        }
        match text(header::ORIGIN) {
            Some(origin) => {
                let from = origin.split_once("://").map_or(origin, |(_, from)| from);
                let same =
                    self.cannot_be_rebound(host) && same_origin(origin.as_bytes(), host.as_bytes());
                if !(self.is_own_host(from) || same) {
                    return Some(Refusal::Origin);
                }
            }
            None if is_cross_origin_request(path, headers) => return Some(Refusal::Site),
            None => {}
        }
        let sent = |scheme: &str| {
            let (sent, value) = text(header::AUTHORIZATION)?.split_once(' ')?;
            sent.eq_ignore_ascii_case(scheme).then(|| value.trim())
        };
        let is = |given: &str, secret: &str| bool::from(given.as_bytes().ct_eq(secret.as_bytes()));
        let token = self.token.as_ref().filter(|_| needs_token(path));
        let by_token = sent("bearer").unwrap_or_default();
        if token.is_some_and(|token| is(by_token, token)) {
            return None;
        }
        if let Some(key) = self.key.as_ref().filter(|_| is_server_api(path)) {
            let field = headers
                .get(KEY_FIELD)
                .map(|it| it.to_str().unwrap_or_default());
            let given = field.or(sent("apikey")).unwrap_or_default();
            return match (is(given, key), given.is_empty()) {
                (true, _) => None,
                (false, true) => Some(Refusal::NoKey),
                (false, false) => Some(Refusal::Key),
            };
        }
        match (token, by_token) {
            (None, _) => None,
            (Some(_), "") => Some(Refusal::NoToken),
            (Some(_), _) => Some(Refusal::Token),
        }
    }
}

/// Whether this path needs the token, if one is set.
fn needs_token(path: &str) -> bool {
    is_server_api(path)
        || TOKEN_PREFIXES.iter().any(|closed| path.starts_with(closed))
            && !PUBLIC_PATHS.contains(&path)
}

/// Whether this path is one of Centrifugo's server API.
fn is_server_api(path: &str) -> bool {
    let method = path.strip_prefix("/api/");
    path == "/api" || method.is_some_and(|method| !method.contains('/'))
}

/// Whether a browser sent the request for a page of another origin, according to `Sec-Fetch-Site`. False for a link that opens the console
/// in a tab: the page with the link cannot read the console.
fn is_cross_origin_request(path: &str, headers: &HeaderMap) -> bool {
    let says = |name, value| headers.get(name).is_some_and(|it| it == value);
    let opens =
        path == "/" && says("sec-fetch-mode", "navigate") && says("sec-fetch-dest", "document");
    let mut sites = headers.get_all("sec-fetch-site").iter();
    !opens && sites.any(|site| is_cross_origin(site.as_bytes()))
}

/// The middleware: passes a request on or refuses it. Answers are not cached unless their handler says otherwise.
pub async fn check_request(
    State(guard): State<Arc<RequestGuard>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = forward_or_refuse(&guard, request, next).await;
    let rule = response.headers_mut().entry(header::CACHE_CONTROL);
    rule.or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn forward_or_refuse(guard: &RequestGuard, request: Request, next: Next) -> Response {
    match guard.check(request.uri(), request.headers()) {
        None => {
            if let Some(authenticated) = request.extensions().get::<AuthenticatedFlag>()
                && guard.authenticates(request.uri().path())
            {
                authenticated.set();
            }
            next.run(request).await
        }
        Some(refusal) => {
            guard.log_refusal(refusal);
            let body = axum::Json(serde_json::json!({ "error": refusal.reason() }));
            let mut response = (refusal.status(), body).into_response();
            let challenge = match refusal {
                Refusal::NoToken => Some("Bearer"),
                Refusal::NoKey | Refusal::Key => Some("apikey"),
                // RFC 6750 section 3.1.
                Refusal::Token => Some("Bearer error=\"invalid_token\""),
                _ => None,
            };
            if let Some(scheme) = challenge.map(HeaderValue::from_static) {
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, scheme);
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_guard(token: &str, hosts: &[&str]) -> RequestGuard {
        guard_at("127.0.0.1:8801", token, hosts)
    }

    fn guard_at(address: &str, token: &str, hosts: &[&str]) -> RequestGuard {
        let admin = Admin {
            token: token.to_string(),
            hosts: hosts.iter().map(ToString::to_string).collect(),
            ..Admin::default()
        };
        RequestGuard::new(&admin, None, address.parse().unwrap())
    }

    fn status(guard: &RequestGuard, path: &str, headers: &[(header::HeaderName, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.clone(), value.parse().unwrap());
        }
        let headers = map;
        guard
            .check(&path.parse().unwrap(), &headers)
            .map_or(200, |refusal| refusal.status().as_u16())
    }

    #[test]
    fn host_must_be_a_name_of_the_admin_port() {
        let guard = new_guard("", &["Admin.example"]);
        for (host, expected) in [
            ("127.0.0.1:8801", 200),
            ("localhost:8801", 200),
            ("LOCALHOST:8801", 200),
            ("admin.example", 200),
            // A tunnel has a port of its own.
            ("localhost", 200),
            ("localhost:9000", 200),
            ("127.0.0.1:9000", 200),
            ("127.0.0.1", 200),
            ("[::1]", 200),
            ("[::1]:9000", 200),
            ("127.8.8.8:1", 200),
            ("admin.example:9000", 403),
            ("10.0.0.5:8801", 403),
            ("rebound.example:8801", 403),
            ("localhost.rebound.example:8801", 403),
            ("127.0.0.1.rebound.example", 403),
            ("localhost:8801@rebound.example", 403),
            ("localhost:x", 403),
            ("::1", 403),
            ("", 403),
        ] {
            let seen = status(&guard, "/api/v1/stats", &[(header::HOST, host)]);
            assert_eq!(seen, expected, "{host}");
        }
        assert_eq!(status(&guard, "/", &[]), 403, "no Host at all");
        for path in PROBES {
            let host = (header::HOST, "balanced.example");
            assert_eq!(status(&guard, path, &[host]), 200, "{path}");
            assert_eq!(status(&guard, path, &[]), 200, "{path}");
        }
    }

    #[test]
    fn host_in_the_target_overrides_the_host_field() {
        let guard = new_guard("", &["admin.example"]);
        for (target, host, expected) in [
            ("http://127.0.0.1:8801/api/v1/stats", "rebound.example", 200),
            ("http://admin.example/api/v1/stats", "rebound.example", 200),
            ("http://rebound.example/api/v1/stats", "127.0.0.1:8801", 403),
            ("http://rebound.example/healthz", "127.0.0.1:8801", 200),
            ("http://a@localhost/api/v1/stats", "localhost", 403),
        ] {
            let seen = status(&guard, target, &[(header::HOST, host)]);
            assert_eq!(seen, expected, "{target} {host}");
        }
        let page = (header::ORIGIN, "http://localhost:9000");
        for (target, expected) in [
            ("http://localhost:9000/", 200),
            ("http://localhost:9001/", 403),
        ] {
            let headers = [(header::HOST, "localhost:9000"), page.clone()];
            assert_eq!(status(&guard, target, &headers), expected, "{target}");
        }
    }

    #[test]
    fn port_on_all_addresses_accepts_any_ip_address_as_host_and_no_foreign_name() {
        for address in ["0.0.0.0:8801", "[::]:8801"] {
            let guard = guard_at(address, "", &["admin.example"]);
            for (host, origin, expected) in [
                ("127.0.0.1:8801", "", 200),
                ("10.0.0.5:8801", "", 200),
                ("[2001:db8::5]:8801", "", 200),
                ("localhost:8801", "", 200),
                ("admin.example", "", 200),
                (address, "", 200),
                ("10.0.0.5:9000", "", 200),
                ("10.0.0.5", "", 200),
                ("[2001:db8::5]", "", 200),
                ("localhost:9000", "", 200),
                ("10.0.0", "", 403),
                ("rebound.example:8801", "", 403),
                ("10.0.0.5.rebound.example:8801", "", 403),
                ("", "", 403),
                // An `Origin` with an IP address is accepted only if the `Host` is the same.
                ("10.0.0.5:8801", "http://10.0.0.5:8801", 200),
                ("10.0.0.5:8801", "http://203.0.113.9:8801", 403),
                ("10.0.0.5:9000", "http://10.0.0.5:9000", 200),
                ("10.0.0.5:9000", "http://10.0.0.5:8801", 403),
                ("rebound.example", "http://rebound.example", 403),
                ("admin.example", "https://admin.example", 200),
                ("10.0.0.5:8801", "http://rebound.example:8801", 403),
            ] {
                let mut headers = vec![(header::HOST, host)];
                headers.extend((!origin.is_empty()).then_some((header::ORIGIN, origin)));
                let seen = status(&guard, "/api/v1/stats", &headers);
                assert_eq!(seen, expected, "{address}: {host} {origin}");
            }
        }
    }

    #[test]
    fn another_origin_is_refused() {
        let guard = new_guard("", &[]);
        let host = (header::HOST, "localhost:8801");
        for (origin, expected) in [
            ("http://localhost:8801", 200),
            ("http://127.0.0.1:8801", 200),
            ("http://localhost:8800", 403),
            ("https://evil.example", 403),
            ("null", 403),
        ] {
            let headers = [host.clone(), (header::ORIGIN, origin)];
            assert_eq!(
                status(&guard, "/api/v1/rules", &headers),
                expected,
                "{origin}"
            );
        }
        // The origin of a page that was loaded through a tunnel has the tunnel's port.
        let host = (header::HOST, "localhost:9000");
        for (origin, expected) in [
            ("http://localhost:9000", 200),
            ("http://localhost:3000", 403),
            ("http://127.0.0.1:9000", 403),
            ("http://a.localhost:9000", 403),
        ] {
            let headers = [host.clone(), (header::ORIGIN, origin)];
            let seen = status(&guard, "/api/v1/rules", &headers);
            assert_eq!(seen, expected, "{origin} through a tunnel");
        }
    }

    #[test]
    fn request_of_a_foreign_page_without_an_origin_is_refused() {
        let guard = new_guard("", &[]);
        let name = header::HeaderName::from_static;
        let host = (header::HOST, "localhost:8801");
        let ask = |path, headers: &[(&'static str, &str)]| {
            let named = headers.iter().map(|(key, value)| (name(key), *value));
            let all: Vec<_> = std::iter::once(host.clone()).chain(named).collect();
            status(&guard, path, &all)
        };
        let link = [
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        for path in ["/", "/metrics", "/api/v1/stats", "/api/v1/tail", "/healthz"] {
            for (site, expected) in [
                ("cross-site", 403),
                ("same-site", 403),
                ("same-origin", 200),
                ("none", 200),
                ("of-a-later-standard", 200),
            ] {
                let seen = ask(path, &[("sec-fetch-site", site)]);
                assert_eq!(seen, expected, "{path} {site}");
            }
            let followed = [&[("sec-fetch-site", "cross-site")], &link[..]].concat();
            let expected = if path == "/" { 200 } else { 403 };
            assert_eq!(ask(path, &followed), expected, "a link to {path}");
            let framed = [
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "iframe"),
            ];
            assert_eq!(ask(path, &framed), 403, "a frame of {path}");
        }
    }

    #[test]
    fn several_hosts_or_origins_are_refused() {
        let guard = new_guard("", &["admin.example"]);
        let ours = (header::HOST, "localhost:8801");
        for other in [
            (header::HOST, "localhost:8801"),
            (header::HOST, "rebound.example"),
        ] {
            let headers = [ours.clone(), other];
            assert_eq!(status(&guard, "/api/v1/stats", &headers), 400);
        }
        let own = (header::ORIGIN, "http://localhost:8801");
        let evil = (header::ORIGIN, "http://evil.example");
        for origins in [[own.clone(), own.clone()], [own, evil]] {
            let headers: Vec<_> = std::iter::once(ours.clone()).chain(origins).collect();
            assert_eq!(status(&guard, "/healthz", &headers), 400);
        }
    }

    #[test]
    fn key_of_the_server_api_opens_its_paths_and_no_other() {
        let guard = |token: &str| RequestGuard {
            key: Some("a key of backends".to_string()),
            ..new_guard(token, &[])
        };
        let host = (header::HOST, "localhost:8801");
        let field = header::HeaderName::from_static(KEY_FIELD);
        let ask = |guard: &RequestGuard, path, headers: &[(header::HeaderName, &str)]| {
            status(
                guard,
                path,
                &[std::slice::from_ref(&host), headers].concat(),
            )
        };
        let keyed = [(field.clone(), "a key of backends")];
        let scheme = [(header::AUTHORIZATION, "apikey a key of backends")];
        let wrong = [
            vec![],
            vec![(field.clone(), "")],
            vec![(field.clone(), "a key of backend")],
            vec![(field.clone(), "a key of backends!")],
            vec![(header::AUTHORIZATION, "Bearer a key of backends")],
            vec![(header::AUTHORIZATION, "apikey another")],
        ];
        for token in ["", "s3cret"] {
            let guard = guard(token);
            for path in ["/api", "/api/publish"] {
                assert_eq!(ask(&guard, path, &keyed), 200, "{path} {token}");
                assert_eq!(ask(&guard, path, &scheme), 200, "{path} {token}");
                for headers in &wrong {
                    assert_eq!(ask(&guard, path, headers), 401, "{path} {headers:?}");
                }
            }
        }
        // Operators need no key.
        let bearer = [(header::AUTHORIZATION, "Bearer s3cret")];
        assert_eq!(ask(&guard("s3cret"), "/api/publish", &bearer), 200);
        for path in ["/api/v1/stats", "/api/v1/publish", "/metrics"] {
            assert_eq!(ask(&guard("s3cret"), path, &keyed), 401, "{path}");
            assert_eq!(ask(&guard(""), path, &[]), 200, "{path}");
        }
        assert_eq!(ask(&new_guard("s3cret", &[]), "/api/publish", &keyed), 401);
    }

    #[test]
    fn token_is_needed_for_the_api_and_metrics_but_not_for_probes_and_the_console() {
        let guard = new_guard("s3cret", &[]);
        let host = (header::HOST, "localhost:8801");
        let ask = |path, authorization| {
            let headers = [host.clone(), (header::AUTHORIZATION, authorization)];
            status(&guard, path, &headers)
        };
        for path in ["/metrics", "/api/v1/stats", "/api/v2"] {
            assert_eq!(
                status(&guard, path, std::slice::from_ref(&host)),
                401,
                "{path}"
            );
            assert_eq!(ask(path, "Bearer s3cret"), 200, "{path}");
            assert_eq!(ask(path, "bearer s3cret"), 200, "{path}");
        }
        for wrong in [
            "Bearer s3cre",
            "Bearer s3crets",
            "Basic s3cret",
            "s3cret",
            "Bearer ",
        ] {
            assert_eq!(ask("/metrics", wrong), 401, "{wrong}");
        }
        for path in [
            "/",
            "/healthz",
            "/readyz",
            "/api/v1/openapi.json",
            "/console.js",
        ] {
            assert_eq!(
                status(&guard, path, std::slice::from_ref(&host)),
                200,
                "{path}"
            );
        }
    }
}
