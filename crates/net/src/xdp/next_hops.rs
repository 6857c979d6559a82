//! To which hardware address the packets of a connection go: the one that the last good segment of this connection came from.
//!
//! Nothing is asked of the network, and no address is shared between connections. So a machine of the same network that forges the address of
//! a client diverts no connection unless it knows the sequence numbers of this one. An answer that belongs to no connection, such as that to a SYN,
//! goes back to where the packet came from.

use crore_tcp::Conn;

use super::interface::Mac;

/// The hardware addresses of connections, by their number.
#[derive(Default)]
pub(super) struct NextHops {
    by_connection: Vec<Mac>,
}

impl NextHops {
    /// A good segment of `conn` came from this hardware address.
    pub(super) fn learn(&mut self, conn: Conn, from: Mac) {
        let index = conn.0 as usize;
        if index >= self.by_connection.len() {
            self.by_connection.resize(index + 1, Mac::default());
        }
        self.by_connection[index] = from;
    }

    /// Where packets of this connection go.
    pub(super) fn of(&self, conn: Conn) -> Option<Mac> {
        self.by_connection.get(conn.0 as usize).copied()
    }
}

/// Whether one machine can have this hardware address: neither a group of machines, to which an answer would be multiplied, nor none.
pub(super) fn is_of_one_machine(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != Mac::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_no_address() {
        let mut hops = NextHops::default();
        assert_eq!(hops.of(Conn(0)), None);
        hops.learn(Conn(7), [2; 6]);
        hops.learn(Conn(3), [4; 6]);
        hops.learn(Conn(7), [6; 6]);
        assert_eq!(hops.of(Conn(3)), Some([4; 6]));
        assert_eq!(hops.of(Conn(7)), Some([6; 6]));
        assert_eq!(hops.of(Conn(8)), None);
    }

    #[test]
    fn groups_of_machines_are_distinguished_from_one_machine() {
        for (mac, is_one) in [
            ([2, 0, 0, 0, 0, 1], true),
            ([0xff; 6], false),
            ([1, 0, 0x5e, 0, 0, 1], false),
            ([0; 6], false),
        ] {
            assert_eq!(is_of_one_machine(mac), is_one, "{mac:?}");
        }
    }
}
