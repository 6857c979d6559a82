//! Implements [`Protocols`], the trait by which the clients' side calls the protocols. The trait documents each function.

use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::base::time::Now;
use crate::base::verdict::Identity;
use crate::client::close::end_connection;
use crate::client::progress::Allowance;
use crate::client::protocols::{Holds, Protocols};
use crate::client::review::may_keep;
use crate::client::row::{FILTERS, SERVED, State};
use crate::client::types::ProtocolTypes;
use crate::home::Home;
use crate::io::{Close, Io};
use crate::protocol::contract::Listed;
use crate::protocol::encode::Encoding;
use crate::protocol::front::{
    AllProtocols, Clients, Connections, Deliveries, Front, Queues, Subscriptions,
};
use crate::protocol::http::answer::answer_reason;
use crate::protocol::http::close::{awaits_verdict, end_http, end_waiting, is_subscribing};
use crate::protocol::http::credentials::http_verdict;
use crate::protocol::http::options::FOLLOWS;
use crate::protocol::http::pipelined::forget_pipelined;
use crate::protocol::http::publish::batch::{drop_batch, go_on_with_batch, has_batch};
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::longpoll::poll::end_poll;
use crate::protocol::mqtt::access::{mqtt_review, mqtt_verdict};
use crate::protocol::mqtt::close::mqtt_end;
use crate::protocol::mqtt::packets::{drop_partial, mqtt_part, mqtt_part_is_slow};
use crate::protocol::mqtt::state::{MqttRow, Subscribed};
use crate::protocol::own::Own;
use crate::protocol::side::{Side, Spill};
use crate::protocol::stream::filtered::catch_up_filters;
use crate::protocol::stream::interest::{may_follow, unfollow};
use crate::protocol::stream::leave::catch_up;
use crate::store::slab::NONE;

impl ProtocolTypes for AllProtocols {
    type Spill = Spill;
    type Held = Side;
    type Subscribed = Subscribed;
    type Row = MqttRow;
    type Own = Own;
    type Encoding = Encoding;

    fn own(now: Now) -> Own {
        Own::new(now)
    }
}

impl Protocols for AllProtocols {
    fn resume<I: Io>(front: &mut Front, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        let row = front.clients.conns.get(conn.slot);
        match row.consumer.state {
            State::Http => front.http_resume(conn, home, io),
            State::Waiting if row.wants(FILTERS) => {
                catch_up_filters(&mut front.clients, &mut front.subs, conn.slot);
            }
            State::Waiting => go_on_with_batch(
                &mut front.clients,
                &mut front.subs,
                &mut front.queues,
                conn.slot,
                home,
                io,
            ),
            State::Sse | State::WebSocket => front.stream_resume(conn, home, io),
            State::Mqtt => front.mqtt_resume(conn.slot, home, io),
            State::Proxy | State::Poll | State::Draining => {}
        }
    }

    fn outbox_drained(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
    ) {
        match clients.conns.get(slot).consumer.state {
            State::Http | State::Mqtt => queues.resume_later(clients, clients.conns.id_of(slot)),
            State::Sse | State::WebSocket => catch_up(clients, subs, queues, slot),
            State::Proxy | State::Waiting | State::Poll | State::Draining => {}
        }
    }

    fn silent_until_s(clients: &Clients, slot: u32) -> u32 {
        match clients.conns.get(slot).consumer.state {
            State::Http => clients.ctx.now.s + clients.ctx.world.settings.timeouts.keep_alive_s,
            State::Mqtt => clients.keep_alive_end_s(slot),
            State::Proxy
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => 0,
        }
    }

    fn deadline_passed<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        deliveries: &Deliveries,
        queues: &mut Queues,
        slot: u32,
        io: &mut I,
    ) {
        let row = clients.conns.get_mut(slot);
        match row.consumer.state {
            State::Http if row.link.spill == NONE && row.link.is(SERVED) => clients.shut(slot, io),
            State::Http | State::WebSocket => end_connection(clients, slot, Reason::TooSlow, io),
            State::Poll => end_poll(clients, subs, deliveries, queues, slot, io),
            State::Waiting | State::Sse => row.link.deadline_s = 0,
            // The client has sent no CONNECT, or no further packet, in time.
            State::Mqtt => mqtt_end(clients, slot, Reason::Silent, io),
            State::Proxy | State::Draining => {
                clients.scratch.note_close_reason(Closed::Timeout);
                clients.drop_conn(slot, Close::Now);
            }
        }
    }

    fn is_held(conns: &Connections, slot: u32) -> bool {
        match conns.get(slot).listed() {
            Some(Listed::Mqtt) => true,
            None => {
                has_batch(conns, slot)
                    || match conns.spill(slot) {
                        Some(Spill::Http(spill)) => spill.held,
                        Some(Spill::Frames(..) | Spill::Mqtt(..)) => true,
                        Some(Spill::WebSocket(..)) | None => false,
                    }
            }
        }
    }

    fn holds(conns: &Connections, slot: u32) -> Holds {
        match conns.get(slot).consumer.state {
            State::Poll => Holds::Pipelined,
            State::Http | State::WebSocket | State::Mqtt => Holds::Input,
            State::Proxy | State::Waiting | State::Sse | State::Draining => Holds::Other,
        }
    }

    fn partial_of(conns: &Connections, slot: u32) -> (usize, u64) {
        match conns.get(slot).listed() {
            // A packet may extend over several frames.
            Some(Listed::Mqtt) => mqtt_part(conns, slot),
            None => (0, 0),
        }
    }

    fn input_lags(clients: &mut Clients, slot: u32, allowance: Allowance) -> bool {
        let state = clients.conns.get(slot).consumer.state;
        let is_mqtt = state == State::Mqtt;
        if is_mqtt && clients.mqtt_must_wait(slot) {
            return false;
        }
        // The bytes of a frame that continues a packet of an earlier frame.
        let mut came = 0;
        if let Some(spill) = clients.conns.spill_mut(slot) {
            let slow = match spill {
                Spill::Http(spill) => {
                    let in_body = spill.judged && state == State::Http;
                    in_body && spill.progress.second(spill.data.len(), allowance)
                }
                Spill::WebSocket(partial, progress) => {
                    came = partial.received_bytes();
                    progress.second(came, allowance)
                }
                Spill::Mqtt(data, progress) => progress.second(data.rest().len(), allowance),
                Spill::Frames(..) => false,
            };
            if slow {
                return true;
            }
        }
        is_mqtt && mqtt_part_is_slow(&mut clients.conns, slot, came, allowance)
    }

    fn drop_pipelined<I: Io>(clients: &mut Clients, queues: &Queues, slot: u32, io: &mut I) {
        forget_pipelined(&mut clients.conns, queues, slot, io);
    }

    fn handle_verdict(clients: &mut Clients, queues: &mut Queues, conn: ConnId, who: Identity) {
        match clients.conns.get(conn.slot).consumer.state {
            State::Waiting => http_verdict(clients, queues, conn, who),
            State::Mqtt => mqtt_verdict(clients, queues, conn, who),
            State::Proxy
            | State::Http
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => {}
        }
    }

    fn settings_changed<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
        io: &mut I,
    ) -> bool {
        match clients.conns.get(slot).consumer.state {
            State::Waiting | State::Poll | State::Sse | State::WebSocket => {
                let may = may_follow(clients, slot).and_then(|()| may_keep(clients, subs, slot));
                may.is_err_and(|denied| match clients.conns.get(slot).consumer.state {
                    State::Waiting => end_waiting(clients, slot, denied),
                    _ => Self::try_end(clients, subs, queues, slot, denied, io),
                })
            }
            State::Mqtt => mqtt_review(clients, subs, slot, io),
            State::Proxy | State::Http | State::Draining => false,
        }
    }

    fn end_connection<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
        match clients.conns.get(slot).consumer.state {
            State::Proxy | State::Http | State::Waiting | State::Poll | State::Draining => {
                end_http(clients, slot, reason, io);
            }
            State::Sse | State::WebSocket => end_stream(clients, slot, reason, io),
            State::Mqtt => mqtt_end(clients, slot, reason, io),
        }
    }

    fn try_end<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) -> bool {
        let row = reason.row();
        let ends = match clients.conns.get(slot).consumer.state {
            // The credential is checked again after the answer. The answer to the subscribe request tells what happened to the
            // topic.
            State::Waiting => false,
            State::Poll => {
                answer_reason(clients, subs, queues, slot, reason, io);
                return true;
            }
            State::Sse | State::WebSocket => row.close.is_some(),
            // Without an MQTT code for the reason, the client stays: its subscriptions outlive a topic, and it may never subscribe
            // again.
            State::Mqtt => row.mqtt.is_some(),
            // The client was granted nothing, and has no subscription.
            State::Proxy | State::Http | State::Draining => false,
        };
        if ends {
            Self::end_connection(clients, slot, reason, io);
        }
        ends
    }

    fn relieve<I: Io>(clients: &mut Clients, queues: &Queues, slot: u32, io: &mut I) {
        let row = clients.conns.get(slot);
        match row.consumer.state {
            // No request is being processed.
            State::Http if row.link.spill == NONE && row.link.outbox == NONE => {
                clients.shut(slot, io)
            }
            // A publish is in flight, and its answer comes soon, so only the bytes pipelined after it are dropped.
            State::Waiting
                if !is_subscribing(&clients.conns, slot)
                    && !awaits_verdict(&clients.conns, slot) =>
            {
                forget_pipelined(&mut clients.conns, queues, slot, io);
            }
            _ => end_connection(clients, slot, Reason::MemoryFull, io),
        }
    }

    fn connection_ends(front: &mut Front, slot: u32) {
        drop_batch(&mut front.clients.conns, slot);
        let row = front.clients.conns.get_mut(slot);
        if row.consumer.own != NONE {
            return front.end_session(slot);
        }
        if row.wants(FOLLOWS) {
            row.consumer.options &= !FOLLOWS;
            unfollow(&mut front.clients, &mut front.subs.lanes, slot);
        }
    }

    fn row_is_freed(clients: &mut Clients, slot: u32) {
        drop_partial(clients, slot);
    }
}
