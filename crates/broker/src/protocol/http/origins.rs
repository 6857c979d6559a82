//! Checks where a request comes from: the host name that the client used, and the page that sent the request.
//!
//! A browser sends the page's origin in `Origin` if the page could read the answer, and with all requests that change something.
//! The headers of the answer then tell the browser which page may read it. Without `Origin` no header protects an answer: a page of
//! another site may run it as a script or show it. Such requests are recognized by `Sec-Fetch-Site`, which browsers send, and
//! refused.
//!
//! Publishers choose the content type of their messages. No message may run as code of the origin that serves it, so a request
//! whose answer would run is recognized by `Sec-Fetch-Dest` and refused, whatever page sends it.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;

use crore_wire::http::head::{Head, Method};
use crore_wire::http::origin;

use crate::base::notices::Notice;
use crate::base::reason::Reason;
use crate::protocol::front::{AllProtocols, Clients, Context, Meter};
use crate::protocol::http::answer::ANY_ORIGIN;
use crate::protocol::http::options::ORIGIN_SHIFT;
use crate::protocol::http::task::{Endpoint, Requests as _};

/// The origin that may read the answer to a request with this only `Origin`, as its number in `options`, or 0.
pub(crate) fn reader_option(ctx: &Context, from: Option<&[u8]>) -> u32 {
    let number = from.and_then(|from| number_of_origin(ctx, origin::normalize(from).as_deref()));
    number.unwrap_or(0) << ORIGIN_SHIFT
}

/// Refuses requests to foreign host names, and from pages of origins that are not allowed. Records which page may read the answer.
///
/// # Errors
/// The reason, and the text for the client.
pub(crate) fn check_origin(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    endpoint: Option<Endpoint>,
    upgrade: bool,
) -> Result<(), (Reason, String)> {
    let http = &clients.ctx.world.settings.http;
    let host = head.host().unwrap_or_default();
    let is_known = || origin::is_loopback_host(host) || origin::is_listed_host(&http.hosts, host);
    if http.loopback_hosts_only && head.host().is_some() && !is_known() {
        clients.meter.notices.note(Notice::Host, host);
        let shown = shortened(host);
        let reason = format!(
            "this server listens on the loopback only, so that the Host {shown} is refused: write hosts = [\"{shown}\"] under [http] in crore.toml (http.hosts), or have the proxy send Host: localhost"
        );
        return Err((Reason::ForeignHost, reason));
    }
    if let Some(destination) = head
        .headers("sec-fetch-dest")
        .find(|it| origin::runs_as_code(it))
    {
        let reason = Reason::RunsAsCode;
        let words = format!(
            "{} (Sec-Fetch-Dest: {})",
            reason.text(),
            shortened(destination)
        );
        return Err((reason, words));
    }
    let mut origins = head.headers("origin");
    let Some(origin) = origins.next() else {
        let admitted = check_without_origin(&mut clients.meter, &clients.ctx, head);
        return admitted.map_err(|words| (Reason::ForeignOrigin, words));
    };
    if origins.next().is_some() {
        return Err((Reason::SeveralOrigins, Reason::SeveralOrigins.text().into()));
    }
    let normal = origin::normalize(origin);
    let is_read = matches!(head.method, Method::Get | Method::Head) && !upgrade;
    // A subscription creates topics, and may take the place of another subscriber, even if its answer cannot be read. Commands may publish.
    let has_effects = endpoint.is_some_and(Endpoint::is_subscription)
        || AllProtocols::is_command_path(&clients.ctx, head.path);
    let is_safe = head.method == Method::Options || is_read && !has_effects;
    match number_of_origin(&clients.ctx, normal.as_deref()) {
        Some(number) => {
            clients.conns.get_mut(slot).consumer.options |= number << ORIGIN_SHIFT;
            Ok(())
        }
        None if origin::same_origin(origin, host) => Ok(()),
        None => {
            let alias = loopback_alias(&clients.ctx, normal.as_deref(), host);
            let kind = match is_safe {
                true => Notice::Reader,
                false => Notice::Origin,
            };
            clients.meter.stats.hidden_answers += u64::from(is_safe);
            let reason = alias.as_ref().map_or("", |_| ALIASES);
            clients.meter.notices.note_with_reason(kind, reason, origin);
            match is_safe {
                true => Ok(()),
                false => Err((Reason::ForeignOrigin, foreign_origin(origin, normal, alias))),
            }
        }
    }
}

/// Decides about a request without `Origin`. `curl` sends such requests, and browsers do for a page of the same origin, for an
/// image or for a script.
fn check_without_origin(meter: &mut Meter, ctx: &Context, head: &Head<'_>) -> Result<(), String> {
    let Some(site) = cross_origin_site(head) else {
        return Ok(());
    };
    if number_of_origin(ctx, None).is_some() {
        return Ok(());
    }
    let site = format!("Sec-Fetch-Site: {}", shortened(site));
    meter
        .notices
        .note(Notice::Origin, format!("none ({site})").as_bytes());
    Err(format!(
        "a page of another origin asks without Origin ({site}): ask by fetch, EventSource or WebSocket, and list the page's origin in http.allowed_origins"
    ))
}

/// Another name of the loopback with which the page would have been admitted: the server's name, or that of a listed origin.
fn loopback_alias(ctx: &Context, from: Option<&str>, host: &[u8]) -> Option<String> {
    let from = from?;
    let listed = &ctx.world.settings.http.allowed_origins;
    let alias = listed
        .iter()
        .find(|listed| origin::is_loopback_alias(from, listed));
    if alias.is_some() || !origin::is_loopback_host(host) {
        return alias.cloned();
    }
    let (scheme, _) = from.split_once("://")?;
    let own_origin = origin::normalize(&[scheme.as_bytes(), b"://", host].concat())?;
    origin::is_loopback_alias(from, &own_origin).then_some(own_origin)
}

/// The number in `options` of a normalized origin, if the settings list it.
fn number_of_origin(ctx: &Context, origin: Option<&str>) -> Option<u32> {
    let mut all = ctx.world.settings.http.allowed_origins.iter();
    let n = all.position(|allowed| allowed == "*" || Some(&allowed[..]) == origin)?;
    let any = ctx.world.settings.http.allowed_origins[n] == "*";
    Some(if any { ANY_ORIGIN } else { n as u32 + 1 })
}

/// Whether the request's cookies count. A browser sends cookies with requests from any page, so those from a page of another site
/// count only if its origin is allowed by name. `null` never counts, because sandboxed frames of any site send it.
pub(crate) fn sends_cookies(ctx: &Context, head: &Head<'_>) -> bool {
    let Some(from) = head.header("origin") else {
        return cross_origin_site(head).is_none();
    };
    if origin::same_origin(from, head.host().unwrap_or_default()) {
        return true;
    }
    let normal = origin::normalize(from).filter(|origin| origin != "null");
    let listed = &ctx.world.settings.http.allowed_origins;
    normal.is_some_and(|origin| listed.contains(&origin))
}

/// The value of `Sec-Fetch-Site` that names another origin, if the request has one.
fn cross_origin_site<'h>(head: &Head<'h>) -> Option<&'h [u8]> {
    let mut sites = head.headers("sec-fetch-site");
    sites.find(|site| origin::is_cross_origin(site))
}

/// The text for a page of an origin that is not listed, with the value to put into the settings.
fn foreign_origin(from: &[u8], normal: Option<String>, alias: Option<String>) -> String {
    let shown = shortened(from);
    if let (Some(normal), Some(alias)) = (&normal, &alias) {
        return format!(
            "the origin {shown} is not allowed: {ALIASES}{alias} is; open the page by that name, or write allowed_origins = [\"{normal}\"] under [http] in crore.toml (http.allowed_origins)"
        );
    }
    match normal.filter(|normal| normal.len() <= SHOWN_BYTES_MAX) {
        Some(normal) => format!(
            "the origin {shown} is not allowed: write allowed_origins = [\"{normal}\"] under [http] in crore.toml (http.allowed_origins)"
        ),
        None => format!(
            "the origin {shown} is not allowed, and is none that could be listed in http.allowed_origins: an origin is scheme, host and perhaps port"
        ),
    }
}

/// Text from a client, cut to the length that an answer may repeat.
fn shortened(text: &[u8]) -> Cow<'_, str> {
    let shown_bytes = text.len().min(SHOWN_BYTES_MAX);
    String::from_utf8_lossy(&text[..shown_bytes])
}

/// Why a page on this machine has another origin, though its origin seems to be the same.
const ALIASES: &str = "localhost and 127.0.0.1 are two origins: ";

/// A host name has at most 253 bytes. A longer one is no typing error.
const SHOWN_BYTES_MAX: usize = 300;
