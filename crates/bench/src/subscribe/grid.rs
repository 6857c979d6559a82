//! Computes the neighbours of a client in a grid: the clients are arranged in a square, and each publishes to its neighbours, as in the
//! benchmark of 2012.

/// The directions of messages: left, right, up and down. A client receives from at most one neighbour in each direction.
pub const DIRECTIONS: usize = 4;

/// The clients in a square whose last row may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    clients: u32,
    width: u32,
}

impl Grid {
    /// The smallest square for `clients`.
    pub fn of(clients: u32) -> Grid {
        let width = f64::from(clients).sqrt().ceil() as u32;
        Grid { clients, width }
    }

    /// The neighbours of `client`, by direction.
    pub fn neighbours(&self, client: u32) -> [Option<u32>; DIRECTIONS] {
        let column = client % self.width;
        let if_exists = |client: Option<u32>| client.filter(|client| *client < self.clients);
        [
            (column > 0).then(|| client - 1),
            if_exists((column + 1 < self.width).then_some(client + 1)),
            client.checked_sub(self.width),
            if_exists(client.checked_add(self.width)),
        ]
    }

    /// The number of messages if each client publishes to its neighbours once.
    pub fn message_count(&self) -> u64 {
        let (clients, width) = (u64::from(self.clients), u64::from(self.width));
        let rows = clients.div_ceil(width);
        2 * ((clients - rows) + clients.saturating_sub(width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_a_neighbour_of_its_neighbours() {
        for clients in [2, 3, 4, 7, 9, 20, 500] {
            let grid = Grid::of(clients);
            let mut messages = 0;
            for client in 0..clients {
                for (direction, neighbour) in grid.neighbours(client).into_iter().enumerate() {
                    let Some(neighbour) = neighbour else { continue };
                    messages += 1;
                    assert!(neighbour < clients && neighbour != client);
                    assert_eq!(
                        grid.neighbours(neighbour)[direction ^ 1],
                        Some(client),
                        "{clients}"
                    );
                }
            }
            assert_eq!(grid.message_count(), messages, "{clients}");
        }
    }

    #[test]
    fn client_that_is_not_at_the_edge_has_four_neighbours() {
        assert_eq!(
            Grid::of(9).neighbours(4),
            [Some(3), Some(5), Some(1), Some(7)]
        );
        assert_eq!(Grid::of(9).neighbours(0), [None, Some(1), None, Some(3)]);
        assert_eq!(Grid::of(8).neighbours(7), [Some(6), None, Some(4), None]);
    }
}
