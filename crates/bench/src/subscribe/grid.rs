//! Computes the neighbours of a client in a grid. The clients are arranged in a square, as in the benchmark of 2012, and each publishes to
//! its neighbours.

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
        let existing = |at: Option<u32>| at.filter(|at| *at < self.clients);
        [
            (column > 0).then(|| client - 1),
            existing((column + 1 < self.width).then_some(client + 1)),
            client.checked_sub(self.width),
            existing(client.checked_add(self.width)),
        ]
    }

    /// The number of messages if each client publishes to its neighbours once.
    pub fn messages(&self) -> u64 {
        let (clients, width) = (u64::from(self.clients), u64::from(self.width));
        let rows = clients.div_ceil(width);
        2 * ((clients - rows) + clients.saturating_sub(width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_neighbours_in_both_directions() {
        for clients in [2, 3, 4, 7, 9, 20, 500] {
            let grid = Grid::of(clients);
            let mut messages = 0;
            for client in 0..clients {
                for (direction, there) in grid.neighbours(client).into_iter().enumerate() {
                    let Some(there) = there else { continue };
                    messages += 1;
                    assert!(there < clients && there != client);
                    assert_eq!(
                        grid.neighbours(there)[direction ^ 1],
                        Some(client),
                        "{clients}"
                    );
                }
            }
            assert_eq!(grid.messages(), messages, "{clients}");
        }
    }

    #[test]
    fn four_stand_beside_whoever_is_not_at_the_edge() {
        assert_eq!(
            Grid::of(9).neighbours(4),
            [Some(3), Some(5), Some(1), Some(7)]
        );
        assert_eq!(Grid::of(9).neighbours(0), [None, Some(1), None, Some(3)]);
        assert_eq!(Grid::of(8).neighbours(7), [Some(6), None, Some(4), None]);
    }
}
