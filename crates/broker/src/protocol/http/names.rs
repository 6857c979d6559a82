//! Reads the topics and filters that a request names.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::topic::TopicError;
use crore_wire::{form, topic};

use crate::base::reason::Reason;
use crate::client::subscriptions::check_subscription_limits;
use crate::protocol::front::{Context, Work};
use crate::protocol::http::suggestions::quoted;

/// The topics in the path and the query, or the filters if the request may have filters. A topic is a filter too.
pub(crate) fn topic_names(
    work: &Work,
    ctx: &Context,
    head: &Head<'_>,
    rest: &[u8],
    is_by_filter: bool,
) -> Result<Vec<Vec<u8>>, NameRefusal> {
    let topic_bytes_max = ctx.world.settings.limits.topic_bytes;
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut name = Vec::new();
    if !rest.is_empty() {
        topic::from_path(rest, topic_bytes_max, &mut name).map_err(|error| bad_topic(&error))?;
        refuse_foreign_wildcards(&name).map_err(name_refusal)?;
        names.push(core::mem::take(&mut name));
    }
    for (key, value) in form::pairs(head.query) {
        if matches!(key, b"topic" | b"channel") {
            topic::from_query(value, topic_bytes_max, &mut name)
                .map_err(|error| bad_topic(&error))?;
            add_name(work, ctx, &mut names, &mut name)?;
        }
    }
    for (key, value) in form::pairs(head.query) {
        if !is_by_filter || key != b"filter" {
            continue;
        }
        if value.ends_with(b"/") {
            return Err(name_refusal(CUT_FILTER.into()));
        }
        form::decode(value, &mut name)
            .map_err(|_| name_refusal(filter_words(&TopicError::BadEscape)))?;
        check_filter(&name, topic_bytes_max).map_err(name_refusal)?;
        add_name(work, ctx, &mut names, &mut name)?;
    }
    if names.is_empty() {
        return Err((Reason::NoName, Reason::NoName.text().into()));
    }
    Ok(names)
}

/// Adds a name if it is new. Fails as soon as there are too many names, since each one is compared with all.
fn add_name(
    work: &Work,
    ctx: &Context,
    names: &mut Vec<Vec<u8>>,
    name: &mut Vec<u8>,
) -> Result<(), NameRefusal> {
    work.steps.add(1 + names.len() / 8);
    if !names.contains(name) {
        names.push(core::mem::take(name));
    }
    name.clear();
    let limits = &ctx.world.settings.limits;
    let (count, bytes) = (names.len(), names.iter().map(Vec::len).sum());
    let room = check_subscription_limits(limits, count, bytes);
    let room = room.and(match limits.may_resume_names(count, bytes) {
        true => Ok(()),
        false => Err(Reason::NamesNotResumed),
    });
    room.map_err(|reason| (reason, reason.text_with_limit(&ctx.world.settings)))
}

/// The text for a URL such as `?filter=scores/#`: clients do not send the fragment after `#`.
pub(crate) const CUT_FILTER: &str = "the filter ends in /, as one whose # was cut off: in a URL # is %23, and a / at the end of a filter %2F";

/// Why the names of a request are refused, and the text for the client.
type NameRefusal = (Reason, Cow<'static, str>);

fn name_refusal(text: Cow<'static, str>) -> NameRefusal {
    (Reason::BadName, text)
}

/// Checks a filter in the query.
///
/// # Errors
/// The text says what is wrong.
pub(crate) fn check_filter(
    filter: &[u8],
    filter_bytes_max: usize,
) -> Result<(), Cow<'static, str>> {
    topic::check_filter(filter, filter_bytes_max).map_err(|error| filter_words(&error))?;
    if filter.starts_with(b"$share/") {
        return Err("shared subscriptions ($share/NAME/FILTER) are MQTT's: leave $share/NAME/ out, or subscribe by MQTT".into());
    }
    // An author who uses one of this server's wildcards knows them.
    match topic::has_wildcard(filter) {
        true => Ok(()),
        false => refuse_foreign_wildcards(filter),
    }
}

/// Refuses a name with wildcards of other servers, whose subscriber would wait without any message. In `?topic=` such a name is
/// accepted, because an MQTT client may have published to it.
fn refuse_foreign_wildcards(name: &[u8]) -> Result<(), Cow<'static, str>> {
    let Some(suggestion) = topic::suggested_filter(name) else {
        return Ok(());
    };
    let (name, suggestion) = (quoted(name), quoted(suggestion.as_bytes()));
    Err(format!(
        "{name} is the name of one topic; for the filter {suggestion} write ?filter=, where + (one level) is %2B and # (all that follow) is %23; \
         a topic of this very name is given as ?topic="
    )
    .into())
}

fn bad_topic(error: &TopicError) -> NameRefusal {
    name_refusal(format!("the topic {error}").into())
}

fn filter_words(error: &TopicError) -> Cow<'static, str> {
    format!("the filter {error}").into()
}
