//! The part of the contract that the clients' side asks for: see [`Protocols`], which says what each question means.

use crate::base::access::Identity;
use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::base::time::Now;
use crate::client::progress::Allowance;
use crate::client::protocols::{Holds, Protocols};
use crate::client::review::may_keep;
use crate::client::row::{SERVED, State};
use crate::client::types::ProtocolTypes;
use crate::home::Home;
use crate::io::{Close, Io};
use crate::protocol::encode::Encoding;
use crate::protocol::front::{AllProtocols, Clients, Connections, Front, Queues};
use crate::protocol::http::close::{is_judged, is_subscribing};
use crate::protocol::http::credentials::http_verdict;
use crate::protocol::http::interest::{may_follow, unfollow};
use crate::protocol::http::options::FOLLOWS;
use crate::protocol::http::pipelined::forget_pipelined;
use crate::protocol::http::publish::batch::{drop_batch, has_batch};
use crate::protocol::http::subscribe::leave::catch_up;
use crate::protocol::mqtt::access::mqtt_verdict;
use crate::protocol::mqtt::packets::{drop_partial, mqtt_part, mqtt_part_is_slow};
use crate::protocol::mqtt::state::{MqttRow, Subscribed};
use crate::protocol::own::Own;
use crate::protocol::side::{Side, Spill};
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
        match front.clients.conns.get(conn.slot).state {
            State::Http => front.http_resume(conn, home, io),
            State::Waiting => front.request_resume(conn.slot, home, io),
            State::Sse | State::WebSocket => front.stream_resume(conn, home, io),
            State::Mqtt => front.mqtt_resume(conn.slot, home, io),
            State::Proxy | State::Poll | State::Draining => {}
        }
    }

    fn sent_all(front: &mut Front, slot: u32) {
        match front.clients.conns.get(slot).state {
            State::Http | State::Mqtt => front
                .queues
                .resume_later(&front.clients, front.clients.conns.id_of(slot)),
            State::Sse | State::WebSocket => {
                catch_up(&mut front.clients, &mut front.subs, &mut front.queues, slot)
            }
            State::Proxy | State::Waiting | State::Poll | State::Draining => {}
        }
    }

    fn silent_until_s(clients: &Clients, slot: u32) -> u32 {
        match clients.conns.get(slot).state {
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

    fn deadline_passed<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let row = front.clients.conns.get_mut(slot);
        match row.state {
            State::Http if row.spill == NONE && row.is(SERVED) => front.shut(slot, io),
            State::Http | State::WebSocket => _ = front.end_for(slot, Reason::TooSlow, io),
            State::Poll => front.end_poll(slot, io),
            State::Waiting | State::Sse => row.deadline_s = 0,
            State::Mqtt => front.mqtt_deadline(slot, io),
            State::Proxy | State::Draining => {
                front.clients.scratch.because(Closed::Timeout);
                front.drop_conn(slot, Close::Now, io);
            }
        }
    }

    fn is_held(conns: &Connections, slot: u32) -> bool {
        match conns.get(slot).state {
            State::Mqtt => true,
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => {
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
        match conns.get(slot).state {
            State::Poll => Holds::Pipelined,
            State::Http | State::WebSocket | State::Mqtt => Holds::Input,
            State::Proxy | State::Waiting | State::Sse | State::Draining => Holds::Other,
        }
    }

    fn partial_of(conns: &Connections, slot: u32) -> (usize, u64) {
        match conns.get(slot).state {
            // A packet may be spread over frames.
            State::Mqtt => mqtt_part(conns, slot),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => (0, 0),
        }
    }

    fn input_lags(clients: &mut Clients, slot: u32, allowance: Allowance) -> bool {
        let state = clients.conns.get(slot).state;
        let is_mqtt = state == State::Mqtt;
        if is_mqtt && clients.mqtt_must_wait(slot) {
            return false;
        }
        // Bytes of a frame whose packet began in an earlier one.
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

    fn verdict_came(clients: &mut Clients, queues: &mut Queues, conn: ConnId, who: Identity) {
        match clients.conns.get(conn.slot).state {
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

    fn settings_changed<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        match front.clients.conns.get(slot).state {
            State::Waiting | State::Poll | State::Sse | State::WebSocket => {
                let may = may_follow(&front.clients, &front.meter.work, slot)
                    .and_then(|()| may_keep(&front.clients, &front.subs, &front.meter.work, slot));
                may.is_err_and(|denied| front.end_for(slot, denied, io))
            }
            State::Mqtt => front.mqtt_review(slot, io),
            State::Proxy | State::Http | State::Draining => false,
        }
    }

    fn end_for<I: Io>(front: &mut Front, slot: u32, reason: Reason, io: &mut I) -> bool {
        match front.clients.conns.get(slot).state {
            State::Proxy => front.proxy_end_for(slot, reason, io),
            State::Http => front.http_end_for(slot, reason, io),
            State::Waiting => front.waiting_end_for(slot, reason, io),
            State::Poll => front.poll_end_for(slot, reason, io),
            State::Sse | State::WebSocket => front.stream_end_for(slot, reason, io),
            State::Mqtt => front.mqtt_end_for(slot, reason, io),
            State::Draining => front.draining_end_for(slot, reason, io),
        }
    }

    fn relieve<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let row = front.clients.conns.get(slot);
        match row.state {
            // It has no request under way.
            State::Http if row.spill == NONE && row.outbox == NONE => front.shut(slot, io),
            // A publish is on its way, and its answer comes soon: the bytes pipelined behind it are dropped.
            State::Waiting
                if !is_subscribing(&front.clients.conns, slot)
                    && !is_judged(&front.clients.conns, slot) =>
            {
                forget_pipelined(&mut front.clients.conns, &front.queues, slot, io);
            }
            _ => _ = front.end_for(slot, Reason::MemoryFull, io),
        }
    }

    fn leaves(front: &mut Front, slot: u32) {
        drop_batch(&mut front.clients.conns, slot);
        let row = front.clients.conns.get_mut(slot);
        if row.own != NONE {
            return front.end_session(slot);
        }
        if row.wants(FOLLOWS) {
            row.options &= !FOLLOWS;
            unfollow(&mut front.clients, &mut front.subs.lanes, slot);
        }
    }

    fn dropped(clients: &mut Clients, slot: u32) {
        drop_partial(clients, slot);
    }
}
