//! Streams of events for the operator's webhooks: of the home's topics, and of the shard's clients.

use crate::home::Home;
use crate::mail::hooks::{HookKinds, HookNews, Hooks, SelectedTopics};
use crate::protocol::front::Clients;

/// Carries out an order. Returns the next events of the stream; `None` if it ends, or if events are lost. A stream that has lost events keeps none, until
/// it is ended.
pub(super) fn carry_out_hooks(
    mut home: Option<&mut Home>,
    clients: &mut Clients,
    order: Hooks,
) -> Option<HookNews> {
    let (number, kinds, begins) = match order {
        Hooks::Next {
            number,
            kinds,
            begins,
        } => (number, kinds, begins),
        Hooks::End(number) => {
            end_stream(home, clients, number);
            return None;
        }
    };
    let now = clients.ctx.now;
    if begins.is_some() && kinds.clients {
        clients.begin_event_stream(number);
    }
    if let (Some(topics), Some(home), true) = (&begins, &mut home, kinds.members) {
        home.begin_member_stream(number, topics.clone(), now);
    }
    next_news(home, clients, (number, kinds, begins))
}

fn next_news(
    home: Option<&mut Home>,
    clients: &mut Clients,
    (number, kinds, begins): (u64, HookKinds, Option<SelectedTopics>),
) -> Option<HookNews> {
    let mut news = HookNews::default();
    if kinds.clients {
        news.clients = clients.next_events(number)?;
    }
    if let Some(home) = home {
        if kinds.subscribers {
            let (changes, more) = home.next_webhook_news(number, begins)?;
            (news.subscribers, news.more) = (changes, more);
        }
        if kinds.members {
            let (changes, more) = home.next_member_changes(number)?;
            news.members = changes;
            news.more |= more;
        }
    }
    Some(news)
}

fn end_stream(home: Option<&mut Home>, clients: &mut Clients, number: u64) {
    clients.end_event_stream(number);
    if let Some(home) = home {
        home.end_webhook_news(number);
        home.end_member_stream(number);
    }
}
