//! What holds for a table between any two calls. The tests with a simulated network check it after each turn.

use super::network::Endpoint;
use crate::row::{NONE, Row, flags};
use crate::timers::NEVER;
use crate::{Conn, State};

/// Checks all connections of a table.
pub fn check(table: &Endpoint) -> Result<(), &'static str> {
    for id in 0..table.rows.len() as u32 {
        check_row(table, id)?;
    }
    let transfers = table
        .transfers
        .iter()
        .filter(|transfer| transfer.row != NONE)
        .count();
    if transfers != table.transfer_count() {
        return Err("a free place of the side table is in use");
    }
    let charged: usize = table
        .transfers
        .iter()
        .map(|transfer| transfer.charged as usize)
        .sum();
    if table.account.entries != charged {
        return Err("the charge of the side table differs from its entries");
    }
    let is_orphan =
        |row: &&Row| row.is(flags::ORPHAN) && !matches!(row.state, State::Closed | State::TimeWait);
    if table.rows.iter().filter(is_orphan).count() != table.orphans() {
        return Err("the number of orphans is wrong");
    }
    for (place, transfer) in (0..).zip(&table.transfers) {
        if transfer.row != NONE && table.rows[transfer.row as usize].transfer != place {
            return Err("a place of the side table belongs to no row");
        }
    }
    Ok(())
}

/// Checks a connection.
fn check_row(table: &Endpoint, id: u32) -> Result<(), &'static str> {
    let row = &table.rows[id as usize];
    let charged = table.account.held.get(&id).copied().unwrap_or(0);
    if row.state != State::Closed {
        let (local, remote) = table.ends(id);
        if table.find(&local, &remote) != Some(id) {
            return Err("a connection is not found by its ends");
        }
    }
    let in_flight = row.send_next.wrapping_sub(row.unacknowledged);
    // The SYN and the FIN have a number each.
    if row.state != State::Closed && in_flight > table.config.send_bytes + 2 {
        return Err("more is in flight than was taken");
    }
    let Some(transfer) = table.transfers.get(row.transfer as usize) else {
        if charged != 0 {
            return Err("an idle connection is charged");
        }
        return match row.state.is_synchronized() && (in_flight != 0 || row.owes_fin()) {
            true => Err("a connection with bytes on their way counts as idle"),
            false => Ok(()),
        };
    };
    if transfer.row != id {
        return Err("a place of the side table belongs to another row");
    }
    if charged != transfer.send.len() as usize + transfer.receive.held() {
        return Err("the charge differs from what is held");
    }
    if row.state == State::Closed {
        return Ok(());
    }
    transfer
        .scoreboard
        .check(row.unacknowledged, row.send_next)?;
    if row.state.is_synchronized() {
        transfer.send.check(row.unacknowledged)?;
        let ranges = table.config.ranges;
        transfer
            .receive
            .check(row.receive_next, row.receive_edge, ranges)?;
    }
    // A window is offered in whole units.
    let most = (1usize << row.receive_log2) + (1 << row.own_shift());
    if transfer.receive.held() > most || transfer.send.len() > table.config.send_bytes {
        return Err("more is held than the settings allow");
    }
    if row.is(flags::DIRTY) {
        return Ok(());
    }
    if transfer.charged != transfer.own_bytes() {
        return Err("an entry is charged for other bytes than it takes");
    }
    if !transfer.scoreboard.is_empty() && transfer.timer_us == NEVER {
        return Err("nothing happens if what is in flight is lost");
    }
    match transfer.queued_us > transfer.due_us() {
        true => Err("a deadline is not among the timers"),
        false => Ok(()),
    }
}

/// Checks one connection, of a table that may have thousands.
pub fn assert(table: &Endpoint, conn: Conn) {
    let Some(row) = table.rows.get(conn.0 as usize) else {
        return;
    };
    if let Err(why) = check_row(table, conn.0) {
        panic!("{why}: {row:?}");
    }
}
